"""How many verified answers miss a limit by more than 2 % in a run ten times as long: `verified.py [QUESTIONS] [SEED]`.

Random questions of one GPU type with limits on means and percentiles. Each confirmed answer is driven again with ten times the
requests of the run that confirmed it, other random arrivals, and nothing stretched to the mean rate; what is counted is how
often a limit is then missed by more than the share that `verify` promises to keep. Seeds 102 to 116, 20 questions each, gave 297
confirmed answers of which one was missed, by 3 %; seeds 201 to 215 gave 293, of which two were missed, by 5 and 10 %. These had
ITL percentiles of few output tokens, between two values. Since what chance leaves open does not hold, seeds 203, 207, 208 and 212,
the last two questions among them, gave 77 confirmed answers and none that was missed (November 2026).
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace

from sizing import ask
from sizing.answers.answer import Answer
from sizing.answers.estimate import answer
from sizing.answers.sizes import VERIFY
from sizing.answers.verify import lengths_of, steady
from sizing.engine.deployment import deployment_of
from sizing.engine.simulation import Traffic, simulate
from sizing.question.question import Question
from sizing.specs.workload import LATENCIES

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen3-32b",
    "mixtral-8x7b",
    "gpt-oss-120b",
    "qwen3-30b-a3b",
    "mistral-7b-v0.1",
)
GPUS = ("h100-sxm", "a100-sxm-80gb", "l40s", "h200-sxm", "h100-pcie", "b200", "mi300x")
TIMES = 10  # as long as the run that confirmed the answer
OTHER_SEED = 1
NO_CHUNKS = 1e-9  # prefill steps of a prompt: no bound on how many are simulated


def random_question(draw: random.Random) -> dict[str, object]:
    """Options of a question: lengths and rates of usual services, at least one limit."""
    options: dict[str, object] = {
        "model": draw.choice(MODELS),
        "gpu": draw.choice(GPUS),
        "isl": int(10 ** draw.uniform(2, 3.8)),
        "osl": int(10 ** draw.uniform(1, 3)),
        "rps": round(10 ** draw.uniform(-0.5, 2), 2),
    }
    statistic = draw.choice(("", "p95:", "p99:"))
    which = draw.choice(("ttft", "itl", "both"))
    if which != "itl":
        options["ttft"] = f"{statistic}{draw.choice((0.3, 0.6, 1, 2, 5))}s"
    if which != "ttft":
        options["itl"] = f"{statistic}{draw.choice((20, 40, 80, 150))}ms"
    return options


def longer(found: Answer, question: Question) -> dict[str, float]:
    """Ratios of latencies to their limits in a longer run of an answer."""
    assert found.run is not None
    pool, limits = found.pool, question.target.limits
    isl, osl = lengths_of(question.origin.workload.tokens)
    plain = Traffic(isl, osl, 0, longest=question.service.max_model_len, seed=OTHER_SEED)
    rate, requests = pool.requests_per_s / pool.count, TIMES * found.run.completed
    traffic = steady(plain, rate, rate * pool.closed_s("e2e")["mean"], NO_CHUNKS, requests)
    run = simulate(deployment_of(pool.timed), replace(traffic, exact_rate=False), routing="round-robin")
    return {
        name: run.latencies_s[name][limit.statistic] / limit.seconds
        for name in LATENCIES
        if (limit := getattr(limits, name)) is not None and run.latencies_s[name]
    }


def main(questions: int, seed: int) -> None:
    """Print each answer that misses, then the counts."""
    draw = random.Random(seed)
    confirmed = missed = 0
    took_s = []
    for number in range(questions):
        options = random_question(draw)
        question = ask(**options)
        began = time.process_time()
        found = answer(question).answer
        took_s.append(time.process_time() - began)
        if found is None or found.run is None:
            continue
        confirmed += 1
        ratios = longer(found, question)
        if max(ratios.values(), default=0.0) > 1 + VERIFY.missed:
            missed += 1
            layout = found.pool.replica.layout
            print(number, options, f"{found.gpus} GPUs, {layout}, {found.run.completed} requests", ratios, flush=True)
    took_s.sort()
    print(
        f"{questions} questions, {confirmed} confirmed, {missed} missed by more than {VERIFY.missed:.0%} in a run {TIMES} x as long"
    )
    print(f"CPU of an answer: median {took_s[len(took_s) // 2]:.2f} s, longest {took_s[-1]:.1f} s")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(100, 1)[len(given) :])
