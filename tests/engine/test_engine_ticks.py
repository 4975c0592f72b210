"""The teaching simulator against the sizing course's numbers and the laws that its policies obey.

The vectors, the step starts and the video example are of the DLI course S-FX-18, from a re-implementation of its rules that
gives every number the course prints. Output lengths are numpy's legacy generator, seed 42, int(max(Normal(10, 5), 1)).
"""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.engine.rules import SchedulerRules, with_policy
from sizing.engine.ticks import TickClock, TickResult, simulate

PREFILL, ITL = 2.0, 1.0
# policy, load, chunks, osl, std, limit, slots -> completed, end, E2E, TTFT, ITL, requests/1k, tokens/1k, queue at the end
Vector = tuple[str, str, dict[str, Any], int, int, float, float, int, tuple[float, ...]]
VECTORS: list[Vector] = [
    ("single", "static", {"requests": 1}, 2, 1, 4, 0, 10, (1, 10, 5, 2, 1, 100, 400, 0)),
    ("two", "static", {"requests": 2}, 2, 1, 4, 0, 10, (2, 10, 7, 4, 1, 200, 800, 0)),
    ("static", "static", {"requests": 100}, 4, 1, 10, 5, 100, (19, 100, 58.1579, 52.8, 1, 190, 1680, 80)),
    ("ifb", "inflight", {"requests": 100}, 4, 1, 10, 5, 100, (27, 101, 58.4444, 52.9, 1.3946, 267.3267, 2376.2376, 69)),
    ("ifb, 2 chunks", "inflight", {"requests": 100}, 4, 2, 10, 5, 100, (31, 100, 57.4194, 54.5143, 1.1388, 310, 2730, 65)),
    ("one, 2 chunks", "one-prefill", {"requests": 100}, 4, 2, 10, 5, 100, (36, 100, 55.9444, 52.1282, 1, 360, 3170, 60)),
    ("C=3", "one-prefill", {"concurrency": 3}, 4, 2, 10, 5, 100, (28, 100, 10.1429, 2.6667, 1, 280, 2470, 0)),
    ("C=6", "one-prefill", {"concurrency": 6}, 4, 2, 10, 5, 100, (36, 100, 15.1389, 7.8718, 1, 360, 3170, 2)),
    ("rate 0.2", "one-prefill", {"rate": 0.2}, 4, 2, 10, 5, 100, (17, 100, 10.0588, 2, 1, 170, 1650, 0)),
    ("rate 0.46", "one-prefill", {"rate": 0.46}, 4, 2, 10, 5, 100, (35, 100, 17.6571, 11.0263, 1, 350, 3060, 6)),
    ("0.46 long", "one-prefill", {"rate": 0.46}, 4, 2, 10, 5, 1e4, (3460, 1e4, 1240.5818, 1233.2991, 1, 346, 3361.4, 1135)),
    ("C=6 long", "one-prefill", {"concurrency": 6}, 4, 2, 10, 5, 1e4, (3461, 1e4, 17.3094, 8.6048, 1, 346.1, 3362.6, 2)),
    ("det static", "static", {"requests": 100}, 4, 1, 10, 0, 100, (20, 100, 51, 50.5, 1, 200, 2280, 76)),
    ("det static 2", "static", {"requests": 100}, 4, 2, 10, 0, 100, (20, 100, 51, 50.5, 1, 200, 2280, 76)),
    ("det ifb", "inflight", {"requests": 100}, 4, 1, 10, 0, 100, (20, 100, 51, 50.5, 1, 200, 2280, 76)),
    ("det ifb 2", "inflight", {"requests": 100}, 4, 2, 10, 0, 100, (20, 100, 51, 50.5, 1, 200, 2280, 76)),
    ("det one", "one-prefill", {"requests": 100}, 4, 1, 10, 0, 100, (25, 100, 53.84, 47, 1.2715, 250, 2740, 71)),
    ("det one 2", "one-prefill", {"requests": 100}, 4, 2, 10, 0, 100, (33, 100, 53.9091, 49, 1, 330, 3480, 63)),
    ("det C=1", "one-prefill", {"concurrency": 1}, 4, 2, 10, 0, 1000, (90, 1000, 11, 2, 1, 90, 908, 0)),
    ("det C=2", "one-prefill", {"concurrency": 2}, 4, 2, 10, 0, 1000, (180, 1000, 11.0111, 2.011, 1, 180, 1814, 0)),
    ("det C=3", "one-prefill", {"concurrency": 3}, 4, 2, 10, 0, 1000, (270, 1000, 11.0222, 2.022, 1, 270, 2718, 0)),
    ("det C=4", "one-prefill", {"concurrency": 4}, 4, 2, 10, 0, 1000, (360, 1000, 11.0333, 2.033, 1, 360, 3620, 0)),
    ("det C=6", "one-prefill", {"concurrency": 6}, 4, 2, 10, 0, 1000, (360, 1000, 16.5, 7.5, 1, 360, 3620, 2)),
    ("det C=8", "one-prefill", {"concurrency": 8}, 4, 2, 10, 0, 1000, (360, 1000, 21.9444, 12.9451, 1, 360, 3620, 4)),
]  # fmt: skip


def run(
    policy: str,
    *,
    slots: int = 4,
    chunks: int = 1,
    osl: float = 10,
    std: float = 0.0,
    limit: float = math.inf,
    batch_size: int = 1,
    batch_window: float = 0.0,
    **load: Any,
) -> TickResult:
    rules = with_policy(
        SchedulerRules(slots=slots, units_per_request=1.0),
        policy,
        ticks=True,
        batch_size=batch_size,
        batch_window=batch_window,
    )
    return simulate(rules, TickClock(PREFILL, ITL, chunks), osl_mean=osl, osl_std=std, limit=limit, **load)


def starts(result: TickResult, count: int) -> list[tuple[float, float, str]]:
    """Start, length and slots of the first steps."""
    return [(s.start, s.end - s.start, "".join(s.states)) for s in result.timeline[:count]]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector[0] for vector in VECTORS])
def test_the_course_s_vectors(vector: Vector) -> None:
    _, policy, load, slots, chunks, osl, std, limit, expected = vector
    got = run(policy, slots=slots, chunks=chunks, osl=osl, std=std, limit=float(limit), **load)
    assert (
        got.figures.completed,
        got.figures.end_tick,
        got.figures.mean_e2e,
        got.figures.mean_ttft,
        got.figures.mean_itl,
        got.figures.requests_per_1k_ticks,
        got.figures.tokens_per_1k_ticks,
        got.figures.queue_end,
    ) == pytest.approx(expected, abs=6e-5)  # the vectors have four decimals


def test_output_lengths_are_the_course_s() -> None:
    first = [12, 9, 13, 17, 8, 8, 17, 13, 7, 12, 7, 7, 11, 1, 1, 7, 4, 11, 5, 2, 17, 8, 10, 2]
    assert run("inflight", std=5.0, limit=100.0, requests=100).requests.osl[:24] == first


def test_step_starts_of_in_flight_batching() -> None:
    got = starts(run("inflight", std=5.0, limit=100.0, requests=100), 14)
    assert got[:9] == [(0, 8, "pppp"), *((float(t), 1, "dddd") for t in range(8, 16))]
    assert got[9:] == [
        (16, 2, "dpdd"),
        (18, 1, "dddd"),
        (19, 1, "dddd"),
        (20, 2, "pddd"),
        (22, 2, "ddpd"),
    ]


def test_step_starts_of_one_prefill_in_two_chunks() -> None:
    got = starts(run("one-prefill", chunks=2, std=5.0, limit=100.0, requests=100), 15)
    # Slot by slot two chunks of a tick each, while the slots before decode.
    assert [state for _, _, state in got[:8]] == [
        *("peee", "peee", "dpee", "dpee", "ddpe", "ddpe", "dddp", "dddp"),
    ]
    assert got[8] == (8, 1, "dddd")
    assert got[12:] == [(12, 1, "dpdd"), (13, 1, "epdd"), (14, 1, "pddd")]


def test_static_batches_start_when_the_longest_of_the_last_has_ended() -> None:
    timeline = run("static", std=5.0, limit=100.0, requests=100).timeline
    assert [step.start for step in timeline if "p" in step.states] == [0, 24, 48, 67, 85]


def test_the_video_s_first_step() -> None:
    # Four prompts of 2 ticks add up to 8; first tokens come at 8. Slot 1's request ends at 16: 9 tokens.
    got = run("inflight", std=5.0, limit=17.0, requests=100)
    first = got.timeline[0]
    assert (first.start, first.end, first.states, first.queue) == (0, 8, ("p",) * 4, 96)
    assert got.requests.first_token[:4] == [8.0] * 4
    assert got.requests.finished[first.occupants[1] or 0] == 16.0


@given(osl=st.integers(1, 30), slots=st.integers(1, 6), requests=st.integers(1, 30), chunks=st.integers(1, 4))
def test_equal_lengths_make_static_and_in_flight_the_same(osl: int, slots: int, requests: int, chunks: int) -> None:
    static = run("static", osl=osl, slots=slots, chunks=chunks, requests=requests)
    flight = run("inflight", osl=osl, slots=slots, chunks=chunks, requests=requests)
    assert static.requests.finished == flight.requests.finished
    assert static.requests.first_token == flight.requests.first_token


@given(
    slots=st.integers(1, 6),
    requests=st.integers(1, 30),
    chunks=st.integers(1, 3),
    seed=st.integers(0, 99),
    std=st.sampled_from([0.0, 5.0]),
)
def test_dynamic_of_size_one_without_a_window_is_static(
    slots: int, requests: int, chunks: int, seed: int, std: float
) -> None:
    common: dict[str, Any] = {"slots": slots, "chunks": chunks, "std": std, "seed": seed, "requests": requests}
    static, dynamic = run("static", **common), run("dynamic", batch_size=1, batch_window=0.0, **common)
    assert static.requests == dynamic.requests
    assert static.timeline == dynamic.timeline


@given(slots=st.integers(1, 6), seed=st.integers(0, 99), requests=st.integers(1, 60))
def test_in_flight_never_ends_later_than_static(slots: int, seed: int, requests: int) -> None:
    common: dict[str, Any] = {"slots": slots, "std": 5.0, "seed": seed, "requests": requests}
    assert run("inflight", **common).figures.end_tick <= run("static", **common).figures.end_tick


def test_more_in_flight_than_slots_adds_queue_and_no_throughput() -> None:
    at_slots, above = (run("one-prefill", chunks=2, limit=1e4, concurrency=c) for c in (4, 9))
    assert above.figures.requests_per_1k_ticks == pytest.approx(at_slots.figures.requests_per_1k_ticks, rel=2e-3)
    assert above.figures.queue_end == 9 - 4
    # Each of the five waits for a slot, and slots come free at the throughput: 5 / X ticks more (Little).
    assert at_slots.figures.mean_ttft is not None and above.figures.mean_ttft is not None
    waited = above.figures.mean_ttft - at_slots.figures.mean_ttft
    assert waited == pytest.approx(5 / (at_slots.figures.requests_per_1k_ticks / 1000), rel=5e-3)


def test_a_rate_above_capacity_grows_the_queue_at_their_difference() -> None:
    capacity = run("one-prefill", chunks=2, limit=1e4, concurrency=8).figures.requests_per_1k_ticks / 1000
    over = run("one-prefill", chunks=2, limit=1e4, rate=0.5)
    # 0.36 requests a tick are served: (0.5 - 0.36) * 10,000 stay behind, to within what is in the slots.
    assert over.figures.queue_end == pytest.approx((0.5 - capacity) * 1e4, abs=4 + 1)


def test_a_rate_below_capacity_leaves_no_queue() -> None:
    assert run("one-prefill", chunks=2, limit=1e4, rate=0.3).figures.queue_end <= 1


@given(chunks=st.integers(2, 8), seed=st.integers(0, 50))
def test_chunking_bounds_a_decode_stall_by_one_chunk(chunks: int, seed: int) -> None:
    got = run("chunked", chunks=chunks, std=5.0, seed=seed, limit=200.0, requests=60)
    longest = max(step.end - step.start for step in got.timeline if "d" in step.states)
    assert longest <= max(ITL, PREFILL / chunks)


def test_whole_prompts_stall_decodes_by_all_that_are_let_in_at_once() -> None:
    got = run("inflight", chunks=1, limit=200.0, requests=60, std=5.0)
    stalls = [(s.end - s.start, s.states.count("p")) for s in got.timeline if "d" in s.states and "p" in s.states]
    assert stalls and all(length == PREFILL * prompts for length, prompts in stalls)


@given(size=st.integers(1, 4), window=st.sampled_from([0.0, 3.0, 7.0]), rate=st.sampled_from([0.1, 0.3]))
def test_a_dynamic_batch_waits_for_its_size_or_its_window(size: int, window: float, rate: float) -> None:
    got = run("dynamic", batch_size=size, batch_window=window, rate=rate, limit=300.0, std=3.0)
    requests, previous_end = got.requests, 0.0
    for start in sorted({at for at in requests.admitted if not math.isnan(at)}):
        batch = [i for i, at in enumerate(requests.admitted) if at == start]
        oldest = min(requests.arrival[i] for i in batch)
        full = len(batch) >= size
        # Idle ticks are whole, so the window's end is noticed at the tick after it.
        assert full or start >= oldest + window
        assert start >= previous_end
        previous_end = max((requests.finished[i] for i in batch if not math.isnan(requests.finished[i])), default=0)


def test_alone_a_request_takes_its_prefill_and_a_tick_a_token() -> None:
    got = run("inflight", osl=4, requests=1)
    assert got.requests.finished == [PREFILL + 3 * ITL]


def test_a_mean_time_to_first_token_is_over_more_requests_than_the_mean_end_to_end() -> None:
    # One slot, prefill 2, three more tokens: requests end at 5, 10, ...; first tokens come at 2, 7, 12. At 13 ticks two
    # have ended and three have started: TTFT (2 + 7 + 12)/3 = 7, E2E (5 + 10)/2 = 7.5.
    got = run("inflight", slots=1, osl=4, requests=9, limit=13.0)
    assert (got.figures.completed, got.figures.mean_ttft, got.figures.mean_e2e) == (2, 7, 7.5)
    # Four slots: rounds of 8 + 3 ticks. At 108 nine have ended, at 11 k: 55 on average; ten have started, at 11 k - 3,
    # which are 57.5 on average: more, though each request waits less for its first token than for its end.
    got = run("inflight", slots=4, osl=4, requests=99, limit=108.0)
    assert (got.figures.mean_ttft, got.figures.mean_e2e) == (57.5, 55)


def test_a_freed_slot_is_the_first_to_be_filled() -> None:
    # Lengths 12 9 13 17: slot 2 is the first to be free (at 16), and takes the fifth request.
    timeline = run("inflight", std=5.0, limit=19.0, requests=100).timeline
    assert next(step.occupants for step in timeline if step.start == 16) == (0, 4, 2, 3)


def test_many_slots_take_time_in_proportion() -> None:
    began = time.perf_counter()
    got = run("inflight", slots=1000, osl=50, requests=2000)
    assert got.figures.completed == 2000
    assert time.perf_counter() - began < 3  # 0.1 s; slots that look for each other took a hundred times that


def test_runs_repeat() -> None:
    first, second = (run("inflight", std=5.0, limit=500.0, rate=0.3) for _ in range(2))
    assert first == second
