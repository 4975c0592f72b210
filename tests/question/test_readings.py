"""One load asked in several ways: a rate, requests in flight, concurrent users; and shares by one rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sizing
from sizing.question.demand import readings
from sizing.specs.errors import InputError
from sizing.specs.units import parse_growth, parse_number, parse_share

SMALL = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "isl": 1000,
    "osl": 200,
    "ttft": "p95:1s",
    "itl": "60ms",
    "tp": 1,
    "pp": 1,
}


def answered(**options: object) -> tuple[int, float, float]:
    """GPUs, requests/s and mean E2E of the closed form's answer."""
    best = sizing.estimate(sizing.ask(**{**SMALL, **options}), simulated=False).answer
    assert best is not None
    return best.gpus, best.requests_per_s, best.closed_s("e2e")["mean"]


@pytest.mark.parametrize("people", [1, 17, 240, 1500])
@pytest.mark.parametrize("think_s", [0.0, 1.0, 30.0, 600.0])
def test_the_same_load_takes_the_same_gpus_however_it_is_asked(people: int, think_s: float) -> None:
    """Little's law: in flight = rate x E2E, users = rate x (E2E + think time). https://doi.org/10.1287/opre.9.3.383

    With fewer replicas than the users take, their own rate is too high too. (The other way it need not be so: people who
    wait longer ask less.)
    """
    asked = {"users": people, "think_time": f"{think_s:g}s"} if think_s else {"concurrency": people}
    gpus, per_s, e2e_s = answered(**asked)
    read = readings(per_s, e2e_s, think_s)
    assert read.users == pytest.approx(people, rel=1e-3)
    assert answered(rps=per_s) == (gpus, pytest.approx(per_s, rel=1e-3), pytest.approx(e2e_s, rel=1e-3))
    others = readings(per_s, e2e_s, 30.0)
    assert answered(users=others.users)[1:] == (pytest.approx(per_s, rel=1e-3), pytest.approx(e2e_s, rel=1e-3))


def test_users_of_sessions_are_the_published_rate() -> None:
    """The sizing course's: requests/s = concurrent users x requests of a session / its seconds."""
    question = sizing.ask(**SMALL, users=600, requests_per_session=5, session_length="10min")
    assert question.target.requests_per_s == pytest.approx(600 * 5 / 600)


def test_users_think_half_a_minute_unless_that_is_said() -> None:
    assert sizing.ask(**SMALL, users=50).target.think_time_s == 30.0
    assert sizing.ask(**SMALL, users=50, think_time="2min").target.think_time_s == 120.0
    turned = sizing.ask(**SMALL, users=50, turns=3, think_time="9s")
    assert (turned.target.think_time_s, turned.service.extras.cached.think_time_s) == (9.0, 9.0)


def test_caches_stay_idle_as_long_as_users_think() -> None:
    """The half minute of users who state none is the time between their turns; a rate has no such time."""
    told, untold = (sizing.ask(**{**SMALL, "users": 50, "turns": 3, **time}) for time in ({"think_time": "30s"}, {}))
    assert untold.service.extras == told.service.extras
    assert untold.service.extras.cached.think_time_s == untold.target.think_time_s == 30.0
    assert sizing.ask(**SMALL, rps=5, turns=3).service.extras.cached.think_time_s is None
    of_session = {"users": 600, "requests_per_session": 5, "session_length": "10min", "turns": 5}
    assert sizing.ask(**{**SMALL, **of_session}).service.extras.cached.think_time_s == 600 / 5


def test_requests_in_flight_come_at_random_times_unless_a_closed_loop_is_asked_for() -> None:
    steady, closed = sizing.ask(**SMALL, concurrency=40), sizing.ask(**SMALL, concurrency=40, closed_loop=True)
    assert (steady.target.population, steady.target.concurrency) == (40, None)
    assert (closed.target.population, closed.target.concurrency) == (None, 40)
    batch = {name: value for name, value in SMALL.items() if name not in ("ttft", "itl")}
    assert sizing.ask(**batch, concurrency=40, mode="offline").target.concurrency == 40  # without arrivals


def test_daily_users_have_a_peak_of_twice_their_mean_unless_that_is_said() -> None:
    rate = 86_400 * 3 / (8 * 3600)
    assert sizing.ask(**SMALL, dau=86_400).target.requests_per_s == pytest.approx(2 * rate)
    assert sizing.ask(**SMALL, dau=86_400, peak_to_mean=1).target.requests_per_s == pytest.approx(rate)


def test_simulated_users_come_at_the_rate_of_their_own_answers() -> None:
    best = sizing.estimate(sizing.ask(**SMALL, users=120)).answer
    assert best is not None and best.run is not None
    e2e_s = best.latency_s("e2e")["mean"]
    assert best.requests_per_s * (e2e_s + 30) == pytest.approx(120, rel=0.02)


# --- what people write ------------------------------------------------------------------------------------------------


@given(st.floats(0, 1))
def test_a_share_is_the_same_as_a_percentage(share: float) -> None:
    assert parse_share(f"{share!r}") == share
    assert parse_share(f"{share * 100!r}%") == pytest.approx(share)


@given(st.floats(1.001, 1e6))
def test_a_bare_number_above_one_is_no_share(number: float) -> None:
    for read in (parse_share, parse_growth):
        with pytest.raises(ValueError, match="is above 1: write"):
            read(f"{number!r}")
    assert parse_growth(f"{number!r}%") == pytest.approx(number / 100)


def test_one_is_all_of_it() -> None:
    assert parse_share("1") == parse_share("100%") == parse_growth(1) == 1.0
    with pytest.raises(ValueError, match=r"write 5% or 0\.05, or 500%"):
        parse_growth("5")
    with pytest.raises(ValueError, match="between 0 and 1"):
        parse_share("101%")


@pytest.mark.parametrize(
    ("text", "number"),
    [("2k", 2000), ("128K", 128_000), ("1,000", 1000), ("1,234,567.5", 1_234_567.5), ("1.5M", 1.5e6)],
)
def test_numbers_are_read_as_people_write_them(text: str, number: float) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize("text", ["1,00", "1,0000", "k", "", "1_000", "2kk", "1,000,00"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no number"):
        parse_number(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"users": 5, "rps": 2.0}, "exactly one"),
        ({"closed_loop": True, "rps": 2.0}, "closed_loop is of requests in flight"),
        ({"requests_per_session": 5, "rps": 2.0}, "--users: is required"),
        ({"users": 5, "requests_per_session": 5}, "is required"),
    ],
)
def test_what_says_more_of_another_demand_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sizing.ask(**SMALL, **options)
