"""The serving engine, simulated: one scheduler, two clocks (a model's step times, or the artificial ticks of teaching).

Between two events (arrival, admission, end of a prefill step, completion, preemption) the batch does not change, so a
stretch of decode steps is one evaluation; its cost does not depend on how many tokens it makes.
"""
