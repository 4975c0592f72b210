"""Sizes for a confidence: by published runs of known errors, never fewer GPUs the surer one is to be, never less than even odds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import ask, files, option, real_model
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sizing
from sizing.answers.advice import UNSURE
from sizing.answers.answer import Outcome, is_alike
from sizing.answers.check import check_size
from sizing.answers.confidence import SizeAtOdds, Unknown, likely, margins, odds_of
from sizing.answers.estimate import answer, estimate
from sizing.answers.search import search
from sizing.answers.verify import under_reserve_load
from sizing.cli.main import run
from sizing.question.question import Question
from sizing.specs.bands import EVEN, PublishedRuns
from sizing.specs.workload import LATENCIES

SHARED = ["estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200"]
TEN = tuple(0.8 + 0.1 * number for number in range(10))  # 0.8 to 1.7
Capture = pytest.CaptureFixture[str]


def runs_of(times: Sequence[float | tuple[float, ...]], kind: str = "dense") -> PublishedRuns:
    """Published runs, each of a group of its own, whose TTFT, ITL, E2E and time a request take so much longer."""
    found = [time if isinstance(time, tuple) else (time,) * 4 for time in times]
    lines = [f"served NVIDIA vllm hopper {kind} {number} {' '.join(map(str, one))}" for number, one in enumerate(found)]
    names = tuple(f"group {number}" for number in range(len(lines)))
    return PublishedRuns(groups=names, runs="\n".join(lines), least_groups=3, source="a test", date="2026-01-01")


@cache
def asked(limit_ms: float | None, rate: float, headroom: float = 0.0) -> Question:
    limits = {} if limit_ms is None else {"limits": {"itl": f"{limit_ms}ms", "ttft": "p95:2s"}}
    question = ask(
        real_model("llama-3.1-8b"),
        demand={"requests_per_s": rate},
        serving={"tp": 1},
        planning={"headroom": headroom},
        **limits,
    )
    return question.with_(gpu_types=(option("h100-sxm"),), precisions=(None,))


def answered(question: Question, runs: PublishedRuns) -> Outcome:
    with files(runs):
        return answer(question, simulated=False)


def sure_of(question: Question, share: float, runs: PublishedRuns) -> float:
    """The GPUs for a confidence; infinite where no number of them is enough."""
    found = answered(question.with_(confidence=share), runs).best
    return math.inf if found is None else found.gpus


def test_the_next_type_with_a_sure_count_is_named_where_the_first_has_none() -> None:
    """Runs are of Hopper alone: whichever type is first, only the count of H100 can be sure."""
    cheap, dear = (option(name, price) for name, price in (("mi300x", 1.0), ("h100-sxm", 50.0)))
    for first, second in ((cheap, dear), (option("h100-sxm", 1.0), option("mi300x", 50.0))):
        question = asked(50.0, 400.0).with_(gpu_types=(first, second), objective="cost")
        found = answered(question, runs_of(TEN))
        assert (
            found.best is not None
            and found.best.pool.replica.gpu_type.id == first.id
            and found.by_runs.odds is not None
        )
        assert (
            (found.by_runs.odds.gpus is None) == (first.id == "mi300x") == (found.by_runs.cheaper_when_sure is not None)
        )
        if found.by_runs.cheaper_when_sure is not None:
            assert found.by_runs.cheaper_when_sure.answer.pool.replica.gpu_type.id == "h100-sxm"
            assert (
                found.by_runs.cheaper_when_sure.sure_answer.gpus or 0
            ) >= found.by_runs.cheaper_when_sure.answer.gpus


# --- margins --------------------------------------------------------------------------------------------------------


def test_without_limits_a_margin_is_how_much_longer_a_request_takes() -> None:
    best = search(asked(None, 100.0)).best
    assert best is not None
    with files(runs_of(TEN)):
        (found,) = margins([(best.pool.timed, asked(None, 100.0))])
    assert not isinstance(found, Unknown)
    assert found.runs.groups == 10
    assert [found.of(share) for share in (0.5, 0.9, 0.95)] == pytest.approx([1.2, 1.6, 1.7])
    assert found.of(0.1) == 1.0  # never less than predicted


def test_a_run_that_is_slower_in_all_serves_what_the_scaled_model_would() -> None:
    """Times k times as long keep a limit L at the load at which the model keeps L / k, at a k-th of its rate."""
    question, slower = asked(20.0, 100.0), 1.25
    best = search(question).best
    tighter = search(asked(20.0 / slower, 100.0).with_(limits=_tighter(question, slower))).best
    assert best is not None and tighter is not None
    with files(runs_of((slower, slower, slower))):
        (found,) = margins([(best.pool.timed, question)])
    assert not isinstance(found, Unknown)
    expected = best.pool.capacity.amount / (tighter.pool.capacity.amount / slower)
    assert found.of(0.9) == pytest.approx(expected, rel=0.02)


def _tighter(question: Question, factor: float) -> Any:
    limits = question.target.limits
    changed = {
        name: limit.model_copy(update={"seconds": limit.seconds / factor})
        for name in ("ttft", "itl")
        if (limit := getattr(limits, name)) is not None
    }
    return limits.model_copy(update=changed)


def test_the_margin_is_joint() -> None:
    """One run misses TTFT, one ITL, one the rate: each alone is within 8 of 10, all three together are not."""
    good = [(1.0,) * 4] * 7
    bad = [(60.0, 1.0, 1.0, 1.0), (1.0, 1.6, 1.0, 1.0), (1.0, 1.0, 1.0, 1.6)]
    question = asked(20.0, 100.0)
    best = search(question).best
    assert best is not None
    with files(runs_of([*good, *bad])):
        (found,) = margins([(best.pool.timed, question)])
    assert not isinstance(found, Unknown)
    assert found.of(0.7) == pytest.approx(1.0)
    assert found.of(0.8) > 1.2


# --- sizes ----------------------------------------------------------------------------------------------------------


@example(5.0, 12.0, [1.0, 2.0, 2.0])
@given(st.floats(5.0, 800.0), st.sampled_from([None, 12.0, 20.0, 40.0]), st.lists(st.floats(0.5, 2.0), min_size=3, max_size=12))  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_the_surer_the_more_gpus(rate: float, limit: float | None, times: list[float]) -> None:
    question, runs = asked(limit, round(rate, 1)), runs_of([round(time, 3) for time in times])
    found = answered(question, runs)
    said = found.by_runs.odds
    if found.best is None:  # no layout keeps the limit in half of the runs
        assert {refusal.reason for refusal in found.refusals} == {UNSURE} and np.median(times) > 1
        return
    assert said is not None
    assert said.chance is not None and said.chance >= 0.5
    if said.gpus is not None:
        assert said.gpus >= found.best.gpus and (said.chance >= 0.9 - 1e-9) == (found.best.gpus == said.gpus)
        counts = [sure_of(question, share, runs) for share in (0.5, 0.7, 0.9, 0.95)]
        assert counts == sorted(counts)
        assert said.gpus == max(found.best.gpus, counts[2])
        if limit is not None:
            assert sure_of(asked(0.9 * limit, round(rate, 1)), 0.9, runs) >= counts[2]


@files(runs_of(TEN))
def test_the_sure_number_is_that_of_the_confidence() -> None:
    question = asked(None, 400.0)
    found = estimate(question, simulated=False)
    assert found.by_runs.odds is not None and found.best is not None
    assert (found.by_runs.odds.groups, found.by_runs.odds.confidence) == (10, 0.9)
    assert found.by_runs.odds.gpus == sure_of(question, 0.9, runs_of(TEN))
    assert 0.5 <= (found.by_runs.odds.chance or 0.0) < 0.9
    assert sure_of(asked(None, 400.0, headroom=0.3), 0.9, runs_of(TEN)) > found.by_runs.odds.gpus


def test_no_size_has_less_than_even_odds() -> None:
    question = asked(None, 400.0)
    centred = answered(question, runs_of((1.0, 1.0, 1.0, 1.0)))
    slow = answered(question, runs_of((0.9, 1.5, 1.5, 1.6)))
    assert centred.best is not None and slow.best is not None
    assert slow.best.gpus == pytest.approx(1.5 * centred.best.gpus, abs=1)
    assert slow.question.target.confidence is None
    budget = question.with_(gpu_budget=centred.best.gpus)
    assert answered(budget, runs_of((1.0, 1.0, 1.0, 1.0))).answer is not None
    assert answered(budget, runs_of((0.9, 1.5, 1.5, 1.6))).answer is None


def test_too_few_groups_say_nothing() -> None:
    question = asked(None, 100.0)
    with files(runs_of((1.5, 1.5))):
        few = estimate(question, simulated=False)
    assert few.by_runs.odds is not None and few.by_runs.odds.gpus is None and few.by_runs.odds.chance is None
    assert few.by_runs.odds.why_not == "no published runs like this"
    with files(runs_of(TEN, kind="moe")):
        other = estimate(question, simulated=False)
    assert other.by_runs.odds is not None and other.by_runs.odds.gpus is None


def test_of_a_stated_number_of_gpus_a_confidence_takes_load() -> None:
    question = asked(20.0, 1.0).with_(requests_per_s=None, gpu_budget=4)
    plain = answered(question, runs_of((1.0, 1.0))).best
    surely = answered(question.with_(confidence=0.9), runs_of(TEN)).best
    assert plain is not None and surely is not None
    assert surely.gpus == plain.gpus == 4
    assert surely.requests_per_s == pytest.approx(plain.requests_per_s / surely.pool.margin)
    assert surely.pool.margin > 1.2


def counts_of(stated: dict[str, Any], *, simulated: bool) -> tuple[list[int | None], Outcome]:
    """What says how many GPUs are sure: beside the answer, with a confidence, the least budget, the least that a check passes."""
    asked_for = sizing.ask(**stated)
    plain = answer(asked_for, simulated=simulated)
    cautious = asked_for.with_(confidence=0.9)
    surely = answer(cautious, simulated=simulated)
    assert (
        plain.by_runs.odds is not None
        and plain.answer is not None
        and surely.answer is not None
        and surely.by_runs.odds is not None
    )
    count, each = surely.answer.pool.count, surely.answer.pool.replica.layout.gpus
    assert (surely.by_runs.odds.gpus, (surely.by_runs.odds.chance or 0) >= 0.9) == (surely.answer.gpus, True)

    def within(budget: int) -> Outcome:
        return answer(cautious.with_(gpu_budget=budget), simulated=simulated, finds_sure=False)

    def passes(replicas: int) -> bool:
        found = check_size(asked_for, replicas, simulated=simulated, confidence=0.9)
        assert found.odds is not None and found.odds.gpus == count * each
        return found.holds and (found.odds.chance or 0.0) >= 0.9

    tried = () if simulated else (surely.answer.gpus - 1, surely.answer.gpus)  # a budget changes no simulation
    budgets = [each for each in tried if each and within(each).answer]
    replicas = [each for each in (count - 1, count) if each and passes(each)]
    least = surely.answer.gpus if simulated else min(budgets, default=None)
    return [plain.by_runs.odds.gpus, surely.answer.gpus, least, min(replicas, default=0) * each], plain


def test_a_simulated_sure_count_is_one_number() -> None:
    """Of a replica that is used to 80 % of what it serves, which leaves too little for the slower of published runs."""
    experts = {"model": "openai/gpt-oss-120b", "gpu": "h100-sxm", "tp": 2, "ep": 1}
    stated: dict[str, Any] = {**experts, "isl": 300, "osl": 40, "ttft": "p95:150ms"}
    one = estimate(sizing.ask(**stated, concurrency=1), simulated=False).best
    assert one is not None
    counts, plain = counts_of({**stated, "concurrency": int(0.8 * one.pool.capacity.amount)}, simulated=True)
    assert plain.answer is not None and plain.verified and plain.by_runs.odds is not None
    assert len(set(counts)) == 1 and plain.answer.gpus < counts[0]  # type: ignore[operator]
    assert (plain.by_runs.odds.chance or 1.0) < 0.9


@files(runs_of(TEN))
def test_a_sure_size_keeps_the_plain_limits_under_its_margin() -> None:
    question = asked(20.0, 300.0).with_(confidence=0.9)
    found = answer(question)
    assert found.verified and found.best is not None and found.best.pool.margin > 1.2
    load, heavier = under_reserve_load(found.best, question)
    assert heavier.target.requests_per_s == pytest.approx(300.0 * found.best.pool.margin)
    assert load.pool.requests_per_s == pytest.approx(300.0 * found.best.pool.margin)
    assert found.best.pool.capacity.amount * found.best.pool.count >= 300.0 * found.best.pool.margin * (1 - 1e-6)


def test_of_layouts_of_equal_size_the_surer_is_chosen() -> None:
    """TP2 serves more replicas, TP4 is as many GPUs and sure at fewer: the answer is the layout of the sure size."""
    for rate in (4, 9):
        found = estimate(
            sizing.ask(model="llama-3.1-70b", gpu="h100-sxm", isl=1000, osl=300, itl="40ms", rps=rate), simulated=False
        )
        assert found.answer is not None and found.by_runs.sure_answer is not None
        alike = [each for each in found.answers if is_alike(each, found.by_runs.sure_answer)]
        assert is_alike(found.answer, found.by_runs.sure_answer) or alike[0].gpus > found.answer.gpus


@files(runs_of(TEN))
def test_the_chance_falls_with_use_and_the_sure_count_grows() -> None:
    """Of one deployment: to the share of runs that are no slower than predicted, where all of its capacity is used."""
    of_all = check_size(asked(20.0, 300.0), 5, simulated=False).most_requests_per_s
    assert of_all is not None
    found = [check_size(asked(20.0, use * of_all), 5, simulated=False).odds for use in (0.4, 0.7, 0.85, 0.93, 1.0)]
    chances, counts = zip(*((each.chance, each.gpus) for each in found if each is not None), strict=True)
    assert list(chances) == sorted(chances, reverse=True) and chances[-1] == pytest.approx(0.3)
    assert len(set(chances)) > 3 and list(counts) == sorted(counts)


def test_a_range_ends_beyond_a_limit_exactly_where_the_count_is_not_sure() -> None:
    """The ranges are by the runs of the sure count, each at the load that it has under the demand."""
    for rate in (40.0, 90.0, 150.0, 210.0):
        question, runs = (
            asked(20.0, rate),
            runs_of([(1.0, 0.7 + 0.1 * number, 1.0, 0.8 + 0.05 * number) for number in range(10)]),
        )
        found = answered(question, runs)
        assert found.answer is not None and found.by_runs.odds is not None
        with files(runs):
            ranges = {band.metric: band for band in likely(found.answer, question)}
        pool = found.answer.pool
        least = pool.capacity.requests_per_s * pool.count * ranges["throughput"].low
        slowest_s = pool.closed_s("itl")["mean"] * ranges["itl"].high
        kept = (found.by_runs.odds.chance or 0.0) >= 0.9 - 1e-9
        assert kept == (least >= rate * (1 - 1e-6)) and (slowest_s <= 0.020 * 1.005 or not kept)
        assert all(band.low <= 1 <= band.high for band in ranges.values())
        assert (found.by_runs.odds.by, found.by_runs.odds.times) == ("itl", pytest.approx(1.5))


@files(runs_of(TEN))
def test_the_share_and_the_range_of_a_simulated_answer_say_the_same() -> None:
    """Where simulated latencies are longer than the closed form's, more runs than the range leaves out miss the limit."""
    question = asked(20.0, 60.0)
    found = answer(question, simulated=False)
    assert found.answer is not None and found.by_runs.odds is not None
    ranges, pool = {band.metric: band for band in likely(found.answer, question)}, found.answer.pool
    chances = []
    for longer in (1.0, 1.2, 1.4, 1.7, 2.0):
        simulated_s = {name: {k: s * longer for k, s in pool.closed_s(name).items()} for name in LATENCIES}
        size = replace(found.answer, run=SimpleNamespace(latencies_s=simulated_s))  # type: ignore[arg-type]
        of_all, sized_even = (
            odds_of([SizeAtOdds(size, question, sure, even)])[0].chance
            for sure, even in ((found.by_runs.sure_answer, False), (None, True))
        )
        assert of_all is not None and sized_even is not None
        highest_s = size.latency_s("itl")["mean"] * ranges["itl"].high
        assert highest_s <= 0.020 * (1 + 1e-6) or of_all <= 1 - runs_of(TEN).tail
        assert sized_even >= min(EVEN, found.by_runs.odds.chance or 0.0), "simulated for even odds"
        chances.append(of_all)
    assert chances == sorted(chances, reverse=True) and chances[-1] < chances[0]


def test_a_tie_does_not_take_the_odds_below_even() -> None:
    """Three layouts are as many GPUs; the one with the smallest sure count would keep the limits in a third of runs."""
    question = sizing.ask(
        model="openai/gpt-oss-120b", gpu="mi325x", engine="sglang", isl=1000, osl=1000, rps=20, ttft="2s", e2e="20s"
    )
    found = answer(question, simulated=False)
    assert found.by_runs.odds is not None and (found.by_runs.odds.chance is None or found.by_runs.odds.chance >= EVEN)


# --- the command ----------------------------------------------------------------------------------------------------


def parsed(arguments: list[str], capsys: Capture, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_conservative_is_nine_of_ten(capsys: Capture) -> None:
    shared = [*SHARED, "--rps", "200", "--itl", "20ms", "--no-verify"]
    plain = parsed(shared, capsys)
    first, second = (parsed([*shared, *extra], capsys) for extra in (["--conservative"], ["--confidence", "90%"]))
    assert first == second
    assert first["deployment"]["gpus"] >= plain["deployment"]["gpus"]
    assert first["conservative"]["gpus_without"] == plain["deployment"]["gpus"]
    assert plain["conservative"] is None and plain["confidence"] == 0.9
    assert plain["deployment"]["gpus_sure"] >= plain["deployment"]["gpus"]
    assert plain["evidence"]["groups"] >= 3


@pytest.mark.parametrize("stated", ["30%", "0.99", "sure", "96%"])
def test_other_confidences_are_refused(stated: str, capsys: Capture) -> None:
    assert run([*SHARED, "--rps", "2", "--confidence", stated]) == 2
    error = capsys.readouterr().err
    assert "--confidence" in error and "50% to 95%" in error


@pytest.mark.parametrize("more", [["-g", "mi300x", "--engine", "sglang"], ["--prefix-hit", "50%"], ["--disaggregate"]])
def test_a_confidence_without_published_runs_is_refused(more: list[str], capsys: Capture) -> None:
    assert run([*SHARED, "--rps", "2", "--confidence", "90%", *more]) == 2
    assert "--confidence" in capsys.readouterr().err


@pytest.mark.parametrize(
    "question",
    [
        ["-m", "openai/gpt-oss-120b", "-g", "h100-sxm", "--isl", "1000", "--osl", "500", "--rps", "10"],
        ["-m", "llama-3.1-70b", "-g", "mi300x", "--isl", "1000", "--osl", "500", "--rps", "10"],
        [
            "-m",
            "openai/gpt-oss-120b",
            "-g",
            "b200",
            "--isl",
            "1000",
            "--osl",
            "500",
            "--gpus",
            "1",
            "--engine",
            "sglang",
        ],
        [*SHARED[1:], "--concurrency", "100"],
    ],
)
def test_every_figure_lies_inside_its_own_band(question: list[str], capsys: Capture) -> None:
    record = parsed(["estimate", *question], capsys)
    assert any(path.startswith("latency") for path in record["bands"])
    for path, band in record["bands"].items():
        value = record
        for name in path.split("."):
            value = value[name]
        assert band["low"] <= value <= band["high"], path  # type: ignore[operator]


# --- every kind of demand -----------------------------------------------------------------------------------------------

DEMANDS: list[dict[str, Any]] = [{"rps": 9}, {"users": 400}, {"concurrency": 120}, {"users": 400, "think_time": "2s"}]


@pytest.mark.parametrize("demand", DEMANDS, ids=str)
@pytest.mark.parametrize("isl", [500, 12_000])
def test_the_sure_count_is_what_a_confidence_takes_and_no_count_has_less_than_even_odds(
    demand: dict[str, Any], isl: int
) -> None:
    stated = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "isl": isl, "osl": 300, "itl": "30ms", "tp": 1, **demand}
    counts, found = counts_of(stated, simulated=False)
    assert len(set(counts)) == 1
    assert (
        found.by_runs.odds is not None and found.by_runs.odds.chance is not None and found.by_runs.odds.chance >= EVEN
    )
    assert found.answer is not None and found.answer.gpus <= (found.by_runs.odds.gpus or 0)


@pytest.mark.parametrize("limit_ms", [None, 40.0])
@files(runs_of(TEN))
def test_what_given_gpus_serve_surely_is_sure_when_asked_for(limit_ms: float | None) -> None:
    """The rate that given GPUs serve has even odds, those that 90 % of runs keep have 90 %, as the demand too; a tenth more has not."""
    given = asked(limit_ms, 1.0).with_(requests_per_s=None, gpu_budget=2)
    outcome = answer(given, simulated=False)
    of = outcome.by_runs.odds
    assert outcome.best is not None and of is not None and of.chance and of.requests_per_s_sure and of.users_sure
    assert EVEN <= of.chance < 0.9

    def odds(**demand: float) -> float:
        best = search(given.with_(**demand)).best
        assert best is not None
        (said,) = odds_of([SizeAtOdds(best, given.with_(**demand))])
        return said.chance or 0.0

    users = {"population": float(of.users_sure), "think_time_s": 30.0}
    served = outcome.best.requests_per_s
    assert odds(requests_per_s=0.999 * served) >= EVEN > odds(requests_per_s=1.1 * served)
    assert odds(requests_per_s=0.999 * of.requests_per_s_sure) >= 0.9 and odds(**users) >= 0.9
    assert odds(requests_per_s=1.1 * of.requests_per_s_sure) < 0.9
    assert odds(**users | {"population": 1.1 * of.users_sure}) < 0.9
