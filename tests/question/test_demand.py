"""Demand: every kind resolved to the rate to size for, by hand-worked numbers; chance; profiles; ranges; their faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson as reference

import sizing
from sizing.catalog.workloads import load_profile, load_workload, override, profile_names
from sizing.cli.main import run
from sizing.question import demand
from sizing.question import demand as poisson
from sizing.question.demand import Demanded
from sizing.question.question import demand_of
from sizing.specs import demand as capacity
from sizing.specs.errors import InputError
from sizing.specs.workload import Workload

MODEL = {"model": "llama-3.1-8b", "tokens": {"isl": 100, "osl": 10}}


def workload(stated: dict[str, Any], mode: str = "streaming", **planning: Any) -> Workload:
    return Workload.model_validate({**MODEL, "mode": mode, "demand": stated, "planning": planning})


def resolved(stated: dict[str, Any], mode: str = "streaming", **planning: Any) -> Demanded:
    found = demand_of(workload(stated, mode, **planning))
    assert found is not None
    return found


# --- chance ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "p95", "p99"),
    [(1, 3, 4), (5, 9, 11), (10, 15, 18), (29, 38, 42), (50, 62, 67), (200, 224, 234), (1000, 1052, 1074)],
)
def test_the_poisson_quantile_is_the_exact_one(mean: float, p95: int, p99: int) -> None:
    """The course prints 224 for 200/s; the normal approximation, 200 + 1.645 * sqrt(200) = 223.3, falls short."""
    assert (poisson.quantile(mean, 0.95), poisson.quantile(mean, 0.99)) == (p95, p99)


@given(st.floats(1e-4, 1e5), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999, 0.999999]))
def test_the_poisson_quantile_agrees_with_scipy(mean: float, share: float) -> None:
    assert poisson.quantile(mean, share) == int(reference.ppf(share, mean))


@given(st.floats(1e6, 1e9), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_of_many_it_is_right_to_a_count(mean: float, share: float) -> None:
    assert poisson.quantile(mean, share) == pytest.approx(int(reference.ppf(share, mean)), abs=2)


@given(st.integers(1, 5000), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_mean_of_a_count_is_the_largest_whose_quantile_it_is(count: int, share: float) -> None:
    mean = poisson.mean_of(count, share)
    assert poisson.quantile(mean * (1 - 1e-9), share) <= count
    assert poisson.quantile(mean * 1.001 + 1e-6, share) > count


# --- kinds of demand -----------------------------------------------------------------------------------------------


def test_daily_users_by_window_or_around_the_clock() -> None:
    """70.747 requests/s * 28,800 s / 3 = 679,171 users of eight hours; * 86,400 s / 9 the same."""
    by_day = resolved({"daily_active_users": 679_171.0}, requests_per_user_per_day=3.0, active_hours=8, peak_to_mean=1)
    around = resolved({"daily_active_users": 679_171.0}, requests_per_user_per_day=9.0, active_hours=24, peak_to_mean=1)
    assert by_day.peak_per_s == pytest.approx(70.747, abs=5e-4)
    assert around.peak_per_s == pytest.approx(70.747, abs=5e-4)
    assert by_day.habits.users_of(70.747) == pytest.approx(679_171, abs=1)
    assert around.habits.users_of(70.747) == pytest.approx(679_171, abs=1)
    # The mean around the clock is that of eight hours spread over 24.
    assert by_day.mean_per_s == pytest.approx(70.747 / 3, abs=5e-4)


def test_users_agree_with_the_plain_formula() -> None:
    found = resolved({"daily_active_users": 1000.0}, requests_per_user_per_day=10.0, active_hours=8, peak_to_mean=2.0)
    assert found.peak_per_s == pytest.approx(capacity.requests_per_s(1000, 10, 8, 2.0))


@pytest.mark.parametrize(
    "calls",
    [
        {"calls": 30e6, "minutes": 10, "requests_per_minute": 3},
        {"calls": 30e6, "requests_per_call": 30},
    ],
)
def test_the_call_centre(calls: dict[str, float]) -> None:
    """30e6 calls * 10 min * 3 requests / 31,536,000 s = 28.539/s on average, seven times that at the peak."""
    found = resolved({"calls_per_year": calls}, peak_to_mean=7)
    assert found.mean_per_s == pytest.approx(28.539, abs=5e-4)
    assert found.peak_per_s == pytest.approx(199.77, abs=5e-3)


def test_the_ready_call_centre_states_its_calls() -> None:
    found = demand_of(load_workload("call-centre").spec)
    assert found is not None and found.kind == "calls_per_year"
    assert found.peak_per_s == pytest.approx(199.77, abs=5e-3)


def test_documents_of_a_year() -> None:
    """31,536,000 documents a year with two requests each are two a second; in eight hours a day six."""
    found = resolved({"documents_per_year": {"documents": 31_536_000, "requests_per_document": 2}}, active_hours=8)
    assert (found.mean_per_s, found.peak_per_s) == (pytest.approx(2.0), pytest.approx(6.0))


def test_sessions_are_those_of_the_peak() -> None:
    """1,200 people with five requests in ten minutes: 1,200 * 5 / 600 s = 10 requests/s; half as many on average."""
    stated = {"sessions": {"concurrent_users": 1200, "requests_per_session": 5, "session_length": "10min"}}
    assert resolved(stated).peak_per_s == pytest.approx(10.0)
    assert resolved(stated).mean_per_s == pytest.approx(10.0 / 6)  # of people: 8 of 24 hours, their peak 2 x the mean
    shaped = resolved(stated, peak_to_mean=2.0, active_hours=24)
    assert (shaped.peak_per_s, shaped.mean_per_s) == (pytest.approx(10.0), pytest.approx(5.0))


def test_a_mean_grows_by_chance() -> None:
    """The course's 200 requests/s on average: 224 in 95 of 100 seconds at most."""
    assert resolved({"mean_requests_per_s": 200.0}, poisson_percentile="95%").peak_per_s == 224
    assert resolved({"requests_per_s": 200.0}, poisson_percentile="p95").peak_per_s == 224
    double = resolved({"mean_requests_per_s": 100.0}, peak_to_mean=2.0, active_hours=24, poisson_percentile=0.95)
    assert double.peak_per_s == 224


def test_a_mean_peaks_as_the_users_do_that_bring_it() -> None:
    """2,000,000 users with a request a day are 23.148 requests/s around the clock, 69.4 in eight hours, 138.9 at their peak."""
    for stated in ({}, {"peak_to_mean": 2.0}, {"active_hours": 12}, {"profile": "office"}):
        by_users = resolved({"daily_active_users": 2e6}, requests_per_user_per_day=1, **stated)
        by_rate = resolved({"mean_requests_per_s": 2e6 / 86_400}, **stated)
        assert by_rate.peak_per_s == pytest.approx(by_users.peak_per_s)
        assert by_rate.mean_per_s == pytest.approx(by_users.mean_per_s)
    assert resolved({"mean_requests_per_s": 2e6 / 86_400}).peak_per_s == pytest.approx(138.889, abs=5e-4)


def test_offline_work_takes_its_mean() -> None:
    """Nobody waits for it, so the night serves what the day brings."""
    assert resolved({"mean_requests_per_s": 5.0}, "offline").peak_per_s == 5.0


def test_the_steps_lead_from_what_is_stated_to_the_peak() -> None:
    found = resolved({"mean_requests_per_s": 100.0}, peak_to_mean=2.0, active_hours=12, poisson_percentile=0.99)
    assert [step.what for step in found.steps] == ["mean", "mean of the active hours", "busiest time", "with chance"]
    # 100 around the clock are 200 in twelve hours, 400 at their peak; ppf(0.99, 400) = 447.
    assert [step.requests_per_s for step in found.steps] == [100, 200, 400, 447]
    assert found.peak_per_s == found.steps[-1].requests_per_s


def test_a_trace_has_its_mean_and_its_fullest_minute() -> None:
    """One a second for ten minutes, and sixty more in the middle of a second: 61 + 59 in that minute."""
    even = np.arange(601.0)
    flat = demand.of_trace(even, 60.0)
    assert (flat.mean_per_s, flat.busiest_per_s) == (pytest.approx(1.0), pytest.approx(1.0))
    burst = np.sort(np.concatenate((even, np.full(60, 300.5))))
    found = demand.of_trace(burst, 60.0)
    assert found.mean_per_s == pytest.approx(660 / 600)
    assert found.busiest_per_s == pytest.approx(120 / 60)
    with pytest.raises(InputError, match="the trace lasts 2 s, less than the 60 s whose fullest are the peak"):
        demand.of_trace(np.array([0.0, 1.0, 2.0]), 60.0)
    with pytest.raises(InputError, match="all requests of the trace arrive at once"):
        demand.of_trace(np.zeros(5), 60.0)


def test_a_trace_is_looked_for_beside_its_workload(tmp_path: Path) -> None:
    rows = "".join(f"{second},100,10\n" for second in range(0, 1200, 2))
    (tmp_path / "requests.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    (tmp_path / "w.yaml").write_text("model: m\ndemand: {trace: requests.csv}\n")
    found = demand_of(load_workload(str(tmp_path / "w.yaml")).spec)
    assert found is not None
    assert (found.mean_per_s, found.peak_per_s) == (pytest.approx(0.5), pytest.approx(0.5))


@given(st.floats(0.1, 1e6), st.floats(0.01, 100), st.floats(0.5, 24), st.floats(1, 20))
def test_users_and_their_peak_are_inverse(users: float, each: float, hours: float, peak: float) -> None:
    found = resolved(
        {"daily_active_users": users + 1e4}, requests_per_user_per_day=each, active_hours=hours, peak_to_mean=peak
    )
    assert found.peak_per_s is not None and found.mean_per_s is not None
    assert found.habits.users_of(found.peak_per_s) == pytest.approx(users + 1e4, rel=1e-9)
    assert found.habits.mean_of(found.peak_per_s) == pytest.approx(found.mean_per_s)
    assert found.peak_per_s >= found.mean_per_s * (1 - 1e-12)


# --- profiles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_keeps_the_mean_and_has_its_peak_in_the_busiest_hour(name: str) -> None:
    found = resolved({"daily_active_users": 86_400.0}, requests_per_user_per_day=1.0, profile=name)
    rates = found.rates_per_s(sized=False)
    assert found.mean_per_s == pytest.approx(1.0)
    assert sum(rates) / len(rates) == pytest.approx(1.0)
    assert max(rates) == pytest.approx(found.peak_per_s)
    assert load_profile(name).spec.kind == "assumed" and "assumed" in load_profile(name).spec.source


def test_weights_of_its_own() -> None:
    """Twelve hours of 3 and twelve of 1: the busy ones have 1.5 times the mean."""
    found = resolved({"mean_requests_per_s": 10.0}, profile=[3] * 12 + [1] * 12)
    assert found.peak_per_s == pytest.approx(15.0)
    assert found.rates_per_s(sized=False)[-1] == pytest.approx(5.0)


def test_a_week_has_168_hours_and_office_rests_at_weekends() -> None:
    weights = load_profile("office").spec.weights
    assert len(weights) == 168
    assert max(weights[5 * 24 :]) < 0.05 * max(weights)


def test_an_option_for_the_peak_takes_the_place_of_the_files_other_way_to_say_it() -> None:
    chat = load_workload("chat").spec  # states peak_to_mean
    by_hour = override(chat, {"planning.profile": "consumer"}, {})
    assert (by_hour.planning.profile, by_hour.planning.peak_to_mean) == ("consumer", None)
    back = override(by_hour, {"planning.peak_to_mean": 3.0}, {})
    assert (back.planning.profile, back.planning.peak_to_mean) == (None, 3.0)


# --- ranges -------------------------------------------------------------------------------------------------------


def test_a_range_is_its_middle_and_is_kept() -> None:
    found = workload({"daily_active_users": 1000}, requests_per_user_per_day="2..5", peak_to_mean="2 .. 4")
    assert (found.planning.requests_per_user_per_day, found.planning.peak_to_mean) == (3.5, 3.0)
    assert {name: (r.low, r.high) for name, r in found.uncertain.items()} == {
        "planning.requests_per_user_per_day": (2.0, 5.0),
        "planning.peak_to_mean": (2.0, 4.0),
    }
    inner = workload({"sessions": {"concurrent_users": "100..300", "requests_per_session": 2, "session_length": "60s"}})
    assert inner.demand is not None and inner.demand.sessions is not None
    assert inner.demand.sessions.concurrent_users == 200
    assert list(inner.uncertain) == ["demand.sessions.concurrent_users"]


def test_an_option_takes_the_place_of_a_range() -> None:
    found = override(workload({"daily_active_users": 1000}, peak_to_mean="2..4"), {"planning.peak_to_mean": 5.0}, {})
    assert found.planning.peak_to_mean == 5.0
    assert not found.uncertain


# --- faults --------------------------------------------------------------------------------------------------------

HEAD = "model: llama-3.1-8b\ntokens: {isl: 100, osl: 10}\n"
FAULTS = {
    "demand: {calls_per_year: {calls: 100, minutes: 3}}": "state requests_per_call, or minutes and requests_per_minute",
    "demand: {calls_per_year: {calls: 100}}": "state requests_per_call, or minutes and requests_per_minute",
    "demand: {calls_per_year: {calls: 1e8, requests_per_call: 1}}": "nothing says how far the peak is above this mean",
    "demand: {sessions: {concurrent_users: 5, requests_per_session: 1, session_length: 10}}": "a duration with its unit",
    "demand: {trace: nowhere.csv}": "nowhere.csv: not found",
    "demand: {requests_per_s: 5, trace: t.csv}": "states 2 demands",
    "planning: {profile: office, peak_to_mean: 2}": "so does peak_to_mean",
    "planning: {profile: [1, 2]}": "24 weights (hours of a day) or 168 (of a week from Monday), not 2",
    f"planning: {{profile: {[0] * 24}}}": "all weights are 0",
    f"planning: {{profile: {[1] * 23 + [-1]}}}": "the weight of hour 23, -1, is no number of at least 0",
    "demand: {requests_per_s: 5}\nplanning: {profile: offic}": "unknown load profile 'offic'",
    "demand: {requests_per_s: 5}\nplanning: {poisson_percentile: 101%}": "is not between 0 and 1",
    "demand: {requests_per_s: 5}\nplanning: {peak_to_mean: 0.5..4}": ":4: planning.peak_to_mean: 0.5..4: 0.5 is refused: it must be a number of at least 1",
    "demand: {requests_per_s: 5}\nplanning: {peak_to_mean: 4..2}": "4..2 is no range",
    "demand: {concurrency: 5}\nplanning: {poisson_percentile: 95%}": "no meaning for requests in flight",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_wrong_demand_is_one_line_with_its_file(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.yaml"
    head = HEAD.splitlines(keepends=True)[0] if "{trace" in text else HEAD  # a trace has its own lengths
    path.write_text(f"{head}{text}\n")
    assert run(["estimate", str(path), "-g", "h100-sxm", "--no-verify"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert FAULTS[text] in err
    assert all(line.startswith("llmsize: ") for line in err.splitlines())


def test_a_trace_and_a_stated_peak_contradict_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,9,9\n1,9,9\n99,9,9\n")
    (tmp_path / "w.yaml").write_text(f"{HEAD}demand: {{trace: t.csv}}\nplanning: {{peak_to_mean: 2}}\n")
    assert run(["estimate", str(tmp_path / "w.yaml"), "-g", "h100-sxm"]) == 2
    assert "the trace says itself how high its peak is" in capsys.readouterr().err


def test_offline_work_of_a_year_may_be_even() -> None:
    found = resolved({"documents_per_year": {"documents": 31_536_000}}, mode="offline")
    assert found.peak_per_s == pytest.approx(1.0)


def test_the_estimate_says_how_its_peak_came_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "call-centre", "-g", "h100-sxm", "--no-verify"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "200 requests/s" in shown
    assert "30,000,000 calls a year x 30 requests / 31,536,000 s, peak 7 x mean" in shown


@pytest.mark.parametrize("planning", [{}, {"active_hours": 12.0}, {"peak_to_mean": 3.0, "active_hours": 10.0}])
def test_users_at_once_and_users_of_a_day_are_the_same_people(planning: dict[str, Any]) -> None:
    """The users at the peak ask the peak rate; as many a day as ask it have the same mean around the clock."""
    rate = 12.0
    at_once = resolved({"concurrent_users": 500}, **planning).at_rate(
        rate, workload({"concurrent_users": 500}, **planning).planning
    )
    of_day = resolved({"daily_active_users": at_once.habits.users_of(rate)}, **planning)
    assert of_day.peak_per_s == pytest.approx(rate) and at_once.peak_per_s == rate
    assert at_once.mean_per_s == pytest.approx(of_day.mean_per_s)
    assert at_once.by_hour_per_s() == pytest.approx(of_day.by_hour_per_s())


def test_requests_in_flight_are_around_the_clock_unless_hours_are_stated() -> None:
    for kind in ("concurrency", "requests_per_s"):
        found = resolved({kind: 10})
        assert found.at_rate(4.0, workload({kind: 10}).planning).mean_per_s is None


def test_documents_within_a_time_are_their_rate_once_a_day() -> None:
    asked = sizing.ask("offline-batch", gpu="h100-sxm", documents=2_000_000, within="6h")
    found = asked.origin.demanded
    assert found is not None and asked.target.offline
    assert found.peak_per_s == found.busy_per_s == 2_000_000 / 21_600 == asked.target.requests_per_s
    assert found.mean_per_s == pytest.approx(2_000_000 / 86_400)
    assert [rate for rate in found.by_hour_per_s() if rate] == [found.busy_per_s] * 6


@pytest.mark.parametrize("hours", ["30h", "1h"])
def test_documents_within_a_time_need_no_other_mode(hours: str) -> None:
    asked = sizing.ask(model="llama-3.1-8b", gpu="h100-sxm", isl=2000, osl=200, documents=3e6, within=hours)
    assert asked.target.offline and asked.target.requests_per_s == pytest.approx(3e6 / 3600 / int(hours[:-1]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"documents": 5e6}, "together"),
        ({"within": "6h"}, "together"),
        ({"documents": 5e6, "within": "6h", "mode": "streaming"}, "mode: .*offline work"),
        ({"documents": 5e6, "within": "6h", "ttft": "1s"}, "ttft: .*offline work"),
        ({"documents": 5e6, "within": "6h", "peak_to_mean": 2}, "as fast as they are answered"),
    ],
)
def test_documents_that_contradict_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sizing.ask("offline-batch", gpu="h100-sxm", **options)
