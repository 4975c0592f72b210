"""The serving engine, simulated: one scheduler with two clocks, a model's step times or the ticks of teaching.

Between two events (arrival, admission, end of a prefill step, completion, preemption) the batch does not change. So a
stretch of decode steps is evaluated at once, and its cost does not depend on the number of tokens.
"""
