"""A comparison is of sensible answers, of which the best are simulated; answers near a limit are decided by long runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from sizing import ask, cost
from sizing.answers.compare import compare, place
from sizing.answers.estimate import answer, estimate, surely_answered
from sizing.catalog import shelf
from sizing.cli.main import run
from sizing.specs.bands import USUAL, PublishedRuns
from sizing.specs.workload import Defaults


def test_a_comparison_simulates_the_ten_best_and_leaves_out_answers_of_very_many_gpus() -> None:
    """A demand that a small card serves with thousands of GPUs only, while others take some dozens."""
    question = ask("chat", gpu="all", rps=300, precision="fp8")
    closed = compare(question, simulated=False)
    most = shelf.only(Defaults).most_gpus_compared
    assert all(outcome.best is None or outcome.best.gpus <= most for outcome in closed)
    left_out = [outcome for outcome in closed if any("leaves out" in refusal.detail for refusal in outcome.refusals)]
    assert left_out and all(outcome.refusals[0].reason == "gpu_budget" for outcome in left_out)
    alone = estimate(
        ask("chat", gpu=left_out[0].question.space.gpu_types[0].id, rps=300, precision="fp8"), simulated=False
    )
    assert alone.best is not None and alone.best.gpus > most  # asked for alone it is an answer


def test_what_a_comparison_ranks_first_is_simulated() -> None:
    found = compare(ask("chat", gpu="h100-sxm,h200-sxm,l40s"), sort="cost")
    assert [outcome.verified for outcome in found] == [True, True, True]


def test_a_pipeline_that_takes_fewer_gpus_stands_after_the_answer_as_in_an_estimate() -> None:
    question = ask(model="llama-3.1-70b", gpu="l40s", isl=1000, osl=200, rps=10, ttft="p95:1s")
    (outcome,) = compare(question, simulated=False)
    best, fewer = outcome.answers
    alone = estimate(question, simulated=False, relaxed=False)
    assert outcome.best is best and fewer.gpus < best.gpus and fewer.pool.replica.layout.pp > 1
    assert (best.gpus, fewer.gpus) == (alone.answers[0].gpus, min(each.gpus for each in alone.answers))


def test_a_cheaper_layout_is_named_only_where_another_reach_finds_it() -> None:
    """At even odds one layout may cost less than another that was confirmed, but no wider reach: it was within reach already."""
    question = ask(model="llama-3.1-8b", gpu="mi300x,l40s", isl=1000, osl=200, rps=10, itl="40ms")
    outcomes = compare(question, simulated=False)
    assert outcomes
    for outcome in outcomes:
        assert all(each.pool.replica.layout.pp > 1 for each in outcome.answers[1:])


def test_published_runs_of_another_process_are_the_same_runs() -> None:
    """Each process has its own copy of the published runs, and keeps what it found in them."""
    runs, question = shelf.only(PublishedRuns), ask("chat", gpu="h100-sxm,h200-sxm")
    sure = question.with_(confidence=USUAL)

    def apart(work: Callable[..., Any], tasks: Sequence[Any]) -> Iterator[Any]:
        return (pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(task))))) for task in tasks)

    found = compare(sure, each=apart)
    assert [of.best and of.best.gpus for of in found] == [of.best and of.best.gpus for of in compare(sure)]
    other = pickle.loads(pickle.dumps(runs))
    assert other == runs and hash(other) == hash(runs) and other is not runs
    assert runs != runs.model_copy(update={"least_groups": runs.least_groups + 1})


def test_a_comparison_has_the_sure_sizes_of_estimates_also_where_they_are_not_simulated() -> None:
    found = compare(ask("chat", gpu="h100-sxm,h200-sxm"))
    for outcome in found:
        alone = estimate(ask("chat", gpu=outcome.question.space.gpu_types[0].id), relaxed=False)
        assert (
            outcome.by_runs.odds is not None
            and alone.by_runs.odds is not None
            and outcome.by_runs.odds.gpus == alone.by_runs.odds.gpus
        )
    h100 = found[0].question.with_(confidence=None)
    plain = answer(h100, finds_sure=False)
    assert plain.by_runs.odds is None and plain.best is not None
    first, by_capacity = found[0].by_runs.odds, surely_answered((h100, plain), simulated=False)
    assert first is not None and by_capacity.by_runs.odds is not None and first.gpus is not None
    assert by_capacity.by_runs.odds.gpus == first.gpus > plain.best.gpus


def test_a_comparison_names_the_surer_choice_of_an_estimate() -> None:
    """Of two types, the cheaper one takes more GPUs to be sure: the other one's sure size is named, at the same price."""
    question = ask(
        model="qwen3-32b", gpu=["mi300x", "b200-sxm"], isl=1200, osl=300, dau=30_000, ttft="p95:1s", itl="50ms"
    )
    first, *_ = sorted(compare(question, simulated=False), key=lambda of: place(of.answer, "cost"))
    free = estimate(question, simulated=False, relaxed=False)
    assert first.by_runs.cheaper_when_sure is not None and free.by_runs.cheaper_when_sure is not None
    assert first.by_runs.cheaper_when_sure.sure_answer.gpus == free.by_runs.cheaper_when_sure.sure_answer.gpus
    assert first.by_runs.cheaper_when_sure.sure_answer.usd_per_hour == pytest.approx(
        free.by_runs.cheaper_when_sure.sure_answer.usd_per_hour
    )
    assert first.by_runs.sure_answer is not None and (first.by_runs.sure_answer.usd_per_hour or 0) > (
        first.by_runs.cheaper_when_sure.sure_answer.usd_per_hour or 0
    )


def test_a_slow_gpu_is_not_cheap_by_the_request() -> None:
    """Without a limit, L4 cost less an hour than an H100 and serve fewer of the same requests in flight; a limit ends that."""
    both = ["l4", "h100-sxm"]
    for limit, first in ((None, "h100-sxm"), ("60s", "l4")):
        question = ask(model="llama-3.1-8b", gpu=both, isl=8000, osl=200, concurrency=4, e2e=limit)
        found = [outcome.answer for outcome in compare(question, simulated=False)]
        aim = question.rules.objective
        best, other = sorted(found, key=lambda each: place(each, aim))
        assert best is not None and other is not None and best.pool.replica.gpu_type.id == first
        free = estimate(question, simulated=False, relaxed=False)
        assert free.best is not None and free.best.pool.replica.gpu_type.id == first
        if limit is None:
            assert aim == "request-cost"
            assert best.usd_per_hour / best.requests_per_s < other.usd_per_hour / other.requests_per_s  # type: ignore[operator]
            assert best.usd_per_hour > other.usd_per_hour  # type: ignore[operator]


def test_an_answer_without_a_limit_is_held_against_usual_limits() -> None:
    """What they take is what the question takes with these limits; an answer that keeps them has nothing beside it."""
    asked = {"model": "llama-3.1-8b", "gpu": "l4", "isl": 8000, "osl": 200, "rps": 1}
    free = estimate(ask(**asked), simulated=False)
    limited = estimate(ask(**asked, ttft="p95:1s", itl="50ms"), simulated=False).answer
    assert free.hints.usual is not None and free.hints.usual.answer == limited
    (compared,) = compare(ask(**asked), simulated=False)
    assert compared.hints.usual == free.hints.usual and cost(ask(**asked), simulated=False).usual == free.hints.usual
    assert estimate(ask("chat", gpu="h100-sxm"), simulated=False).hints.usual is None
    kept = ask(model="llama-3.1-8b", gpu="h100-sxm", isl=100, osl=100, rps=1)
    assert estimate(kept, simulated=False).hints.usual is None


def test_a_budget_too_small_names_the_same_count_in_both_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """What the demand takes without a budget: the layout that is the answer then, and the pipeline that takes less."""
    asked = (
        "-m",
        "Llama-3.3-70B",
        "--precision",
        "int4",
        "--isl",
        "800",
        "--osl",
        "250",
        "--rps",
        "15",
        "-g",
        "a100-sxm-80gb",
    )
    told = []
    for command in ("estimate", "compare"):
        assert run([command, *asked, "--gpus", "4", "--no-verify"]) == 1
        text = " ".join(capsys.readouterr().out.split()).partition(" more than the budget of 4")[0]
        told.append(text[text.rindex("the demand takes") :])
    free = estimate(
        ask(model=asked[1], precision="int4", gpu=asked[-1], isl=800, osl=250, rps=15), simulated=False
    ).answer
    assert free is not None and told[0] == told[1] and f"takes {free.gpus} x " in told[0]
