"""One replica: jumping over decode steps changes nothing, nothing is lost, nothing exceeds its bound, rules are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from engine_builders import Served, StubClock, poisson, repeated, replica_of, run_open, served, store, stub_replica
from hypothesis import given
from hypothesis import strategies as st

from sizing.engine import run
from sizing.engine.batch import DecodeBatch, KvCache, Piece
from sizing.engine.requests import Requests
from sizing.engine.rules import SchedulerRules
from sizing.engine.scheduler import Scheduler
from sizing.engine.ticks import TickClock
from sizing.specs.engine_time import FrontEnd

# Dense, windowed, latent and hybrid models; every scheduler family; a pipeline.
DEPLOYMENTS = (
    ("llama-3.1-8b", "vllm:0.19.0", 1, 1),
    ("llama-3.1-8b", "vllm:0.6.0", 1, 1),
    ("llama-3.1-8b", "sglang:0.5.9", 1, 1),
    ("llama-3.1-8b", "tensorrt-llm:1.2.0", 1, 1),
    ("llama-3.1-8b", "vllm:0.19.0", 1, 2),
    ("gpt-oss-20b", "vllm:0.19.0", 1, 1),
    ("gpt-oss-20b", "sglang:0.5.9", 1, 1),
    ("deepseek-v2-lite", "vllm:0.19.0", 1, 1),
    ("qwen3-next-80b-a3b", "vllm:0.19.0", 4, 1),
)
RELATIVE_S, RELATIVE_TICKS = 1e-6, 1e-9


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load on a deployment: lengths, what the rules are changed to, how requests come."""

    deployment: tuple[str, str, int, int]
    lengths: tuple[tuple[int, int], ...]
    rules: dict[str, Any]
    pool_sequences: float
    prefix_hit: float
    load: str
    in_flight: int
    rate: float
    seed: int

    @property
    def served(self) -> Served:
        model, engine, tp, pp = self.deployment
        return served(model, engine, tp=tp, pp=pp)

    def run(self, one_by_one: bool = False) -> tuple[Requests, Scheduler]:
        of = self.served
        isl, osl = [i for i, _ in self.lengths], [o for _, o in self.lengths]
        longest = max(i + o for i, o in self.lengths)
        tokens = math.ceil(longest * self.pool_sequences)
        closed = self.load == "closed"
        arrivals = [0.0] * len(isl) if self.load == "batch" else poisson(len(isl), self.rate, self.seed)
        requests = Requests() if closed else store(arrivals, isl, osl)
        changes = dict(self.rules)
        if not of.rules.splits:
            changes["budget"] = 8192.0  # prompts that are not cut must fit
        replica = replica_of(of, requests, pool_tokens=tokens, one_by_one=one_by_one, **changes)
        replica.prefix_hit = self.prefix_hit
        if closed:
            run.closed_loop(requests, replica, in_flight=self.in_flight, count=len(isl), lengths=iter(self.lengths))
        else:
            run_open(replica)
        return requests, replica


@st.composite
def scenarios(draw: st.DrawFn, deployments: Sequence[tuple[str, str, int, int]] = DEPLOYMENTS) -> Scenario:
    # Short prompts stay below the window of 128 tokens, so that windows fill while decoding.
    isl = st.one_of(st.integers(1, 140), st.integers(1, 2500))
    osl = st.one_of(st.integers(1, 3), st.integers(1, 400))
    rules: dict[str, Any] = {
        "slots": draw(st.integers(1, 12)),
        "budget": float(draw(st.sampled_from([16, 256, 2048, 8192]))),
    }
    if draw(st.booleans()):
        rules |= {"hold_steps": draw(st.integers(1, 20)), "hold_ratio": draw(st.floats(0, 1))}
    if draw(st.booleans()):
        rules["poll_steps"] = rules["block_steps"] = draw(st.integers(1, 30))
    return Scenario(
        deployment=draw(st.sampled_from(deployments)),
        lengths=tuple(draw(st.lists(st.tuples(isl, osl), min_size=1, max_size=30))),
        rules=rules,
        pool_sequences=draw(st.sampled_from([1.0, 1.5, 3.0, 50.0])),
        prefix_hit=draw(st.sampled_from([0.0, 0.3])),
        load=draw(st.sampled_from(["batch", "poisson", "closed"])),
        in_flight=draw(st.integers(1, 16)),
        rate=draw(st.sampled_from([1.0, 10.0, 100.0])),
        seed=draw(st.integers(0, 9)),
    )


def same(a: Sequence[float], b: Sequence[float], relative: float) -> bool:
    return all(x == pytest.approx(y, rel=relative, nan_ok=True) for x, y in zip(a, b, strict=True))


# --- jumping is exact ------------------------------------------------------------------------------------------------


@given(scenarios())
def test_jumping_over_decode_steps_changes_nothing(scenario: Scenario) -> None:
    (jumped, fast), (stepped, slow) = scenario.run(), scenario.run(one_by_one=True)
    assert jumped.preemptions == stepped.preemptions
    assert same(jumped.admitted, stepped.admitted, RELATIVE_S)
    assert same(jumped.first_token, stepped.first_token, RELATIVE_S)
    assert same(jumped.finished, stepped.finished, RELATIVE_S)
    assert fast.watch.busy == pytest.approx(slow.watch.busy, rel=RELATIVE_S)
    assert fast.watch.batch == pytest.approx(slow.watch.batch, rel=RELATIVE_S)


@pytest.mark.parametrize("deployment", DEPLOYMENTS[:3] + DEPLOYMENTS[5:6], ids=str)
def test_jumping_is_exact_where_sequences_are_preempted(deployment: tuple[str, str, int, int]) -> None:
    """Twenty requests that outgrow a pool of two; with a window of 128 tokens many come back before they fill it."""
    lengths = tuple((20 + 7 * i, 60 + 11 * i) for i in range(20))
    scenario = Scenario(deployment, lengths, {"slots": 8, "budget": 256.0}, 2.0, 0.0, "batch", 1, 1.0, 0)
    (jumped, replica), (stepped, _) = scenario.run(), scenario.run(one_by_one=True)
    assert replica.preempted > 0
    assert jumped.preemptions == stepped.preemptions
    assert same(jumped.finished, stepped.finished, RELATIVE_S)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    slots=st.integers(1, 6),
    chunks=st.integers(1, 3),
    rate=st.sampled_from([0.05, 0.2, 1.0]),
    most_prefilling=st.sampled_from([1.0, math.inf]),
    budget=st.sampled_from([1.0, math.inf]),
)
def test_jumping_is_exact_in_ticks(
    lengths: list[int], slots: int, chunks: int, rate: float, most_prefilling: float, budget: float
) -> None:
    outcomes = []
    for one_by_one in (False, True):
        requests = store(poisson(len(lengths), rate, 0), [1] * len(lengths), lengths)
        replica = Scheduler(
            requests,
            TickClock(2.0, 1.5, chunks),
            SchedulerRules(slots, units_per_request=1.0, most_prefilling=most_prefilling, budget=budget),
            KvCache(math.inf, 0.0, 1),
            DecodeBatch(),
            units=lambda _: float(chunks),
            one_by_one=one_by_one,
        )
        run_open(replica)
        outcomes.append(requests)
    assert same(outcomes[0].first_token, outcomes[1].first_token, RELATIVE_TICKS)
    assert same(outcomes[0].finished, outcomes[1].finished, RELATIVE_TICKS)


# --- nothing is lost, nothing happens before its cause ---------------------------------------------------------------


@given(scenarios())
def test_conservation_causality_and_bounds(scenario: Scenario) -> None:
    requests, replica = scenario.run()
    count = len(requests)
    assert count == len(scenario.lengths)
    assert not any(math.isnan(at) for at in requests.finished)
    assert requests.generated == requests.osl
    for number in range(count):
        assert (
            requests.arrival[number]
            <= requests.admitted[number]
            <= requests.first_token[number]
            <= requests.finished[number]
        )
        assert (requests.first_token[number] < requests.finished[number]) == (requests.osl[number] > 1)
    watch, pool = replica.watch, replica.pool
    assert watch.batch_max <= scenario.rules["slots"]
    assert watch.cache_max <= pool.size_bytes + pool.slack_bytes
    assert watch.busy <= replica.now * (1 + 1e-9)
    assert not replica.refused
    assert sum(requests.preemptions) == replica.preempted


@given(scenarios())
def test_nothing_is_held_when_all_is_done(scenario: Scenario) -> None:
    _, replica = scenario.run()
    assert abs(replica.pool.held_bytes) <= replica.pool.slack_bytes
    assert not any(replica.pool.phases)
    assert (replica.in_flight, replica.running, replica.held) == (0, 0, {})
    assert replica.batch.size == 0 and replica.batch.to_come == 0
    assert replica.batch.context == pytest.approx(0, abs=1e-6)
    assert not any(replica.batch.growing) and replica.batch.attended == pytest.approx(
        [0.0] * len(replica.batch.windows)
    )


@given(scenarios(), st.floats(0.05, 0.95))
def test_at_any_moment_all_that_arrived_is_somewhere(scenario: Scenario, share: float) -> None:
    requests, whole = replace(scenario, load="poisson").run()
    again = store(requests.arrival, requests.isl, requests.osl)
    replica = fresh(scenario, again)
    limit = share * whole.now
    run.open_loop(again, [replica], limit=limit)
    arrived = sum(at < limit for at in again.arrival)
    ended = sum(not math.isnan(at) for at in again.finished)
    assert arrived == ended + replica.in_flight + len(replica.refused)


def fresh(scenario: Scenario, requests: Requests) -> Scheduler:
    """A replica of a scenario that nothing has run on."""
    longest = max(i + o for i, o in scenario.lengths)
    changes = dict(scenario.rules)
    if not scenario.served.rules.splits:
        changes["budget"] = 8192.0
    return replica_of(scenario.served, requests, pool_tokens=math.ceil(longest * scenario.pool_sequences), **changes)


@given(scenarios())
def test_runs_repeat(scenario: Scenario) -> None:
    first, second = scenario.run()[0], scenario.run()[0]
    assert (first.first_token, first.finished) == (second.first_token, second.finished)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=str)
def test_littles_law(deployment: tuple[str, str, int, int]) -> None:
    """Mean in flight = throughput x mean E2E: an identity over a run that starts and ends empty."""
    model, engine, tp, pp = deployment
    rng = np.random.default_rng(5)
    requests = store(poisson(1500, 8.0, 5), rng.integers(50, 1200, 1500).tolist(), rng.integers(1, 300, 1500).tolist())
    replica = replica_of(served(model, engine, tp=tp, pp=pp), requests, slots=64, pool_tokens=60_000)
    run_open(replica)
    in_flight = (replica.watch.queue + replica.watch.batch) / replica.now
    outside_s = np.array([replica.clock.outside(isl) for isl in requests.isl])
    e2e = np.mean(np.array(requests.finished) - np.array(requests.arrival) - outside_s)
    # A request that arrives within a step is queued from its arrival but seen at the step's end: below 1 %.
    assert in_flight == pytest.approx(len(requests) / replica.now * e2e, rel=0.01)


# --- rules -----------------------------------------------------------------------------------------------------------


def test_a_request_that_can_never_fit_is_refused_and_counted() -> None:
    of = served("llama-3.1-8b", "vllm:0.19.0")
    requests = store([0.0, 0.0, 0.1], [500, 5000, 500], [100, 100, 100])
    replica = replica_of(of, requests, pool_tokens=1600)
    run_open(replica)
    assert replica.refused == [1]
    assert [math.isnan(at) for at in requests.finished] == [False, True, False]


def test_a_closed_loop_of_refused_requests_ends() -> None:
    replica = replica_of(served("llama-3.1-8b", "vllm:0.19.0"), Requests(), pool_tokens=160)
    done = run.closed_loop(replica.requests, replica, in_flight=4, count=100, lengths=repeated(500, 100))
    assert done.ended == 0.0 and len(replica.refused) >= 4


@given(seed=st.integers(0, 99), rate=st.sampled_from([1.0, 20.0]), ahead=st.booleans())
def test_with_free_slots_and_cache_a_request_waits_at_most_a_step(seed: int, rate: float, ahead: bool) -> None:
    """It waits for one more where the engine makes up a step while the one before it runs."""
    of = served("llama-3.1-8b", "vllm:0.19.0")
    rng = np.random.default_rng(seed)
    arrivals = poisson(60, rate, seed)
    requests = store(arrivals, rng.integers(1, 100, 60).tolist(), rng.integers(1, 200, 60).tolist())
    replica = replica_of(of, requests)
    steps: list[tuple[float, float]] = []
    replica.one_by_one = True
    replica.rules = replace(replica.rules, ahead=ahead)
    replica.observer = lambda start, end, *_: steps.append((start, end))
    run_open(replica)
    longest = max(end - start for start, end in steps)
    seen = [0.0]  # when the front end's thread is through with each
    for at in arrivals:
        seen.append(max(seen[-1], at) + of.clock.serial)
    waits = np.array(requests.admitted) - np.array(seen[1:])
    assert waits.max() <= longest * (1 + ahead) * (1 + 1e-9)


def test_preemption_keeps_what_was_generated() -> None:
    """Two requests of 100 + 200 tokens in 400 tokens of cache: one goes, comes back, and makes the rest only."""
    of = served("llama-3.1-8b", "vllm:0.19.0")
    requests = store([0.0, 0.0], [100, 100], [200, 200])
    replica = replica_of(of, requests, pool_tokens=400, one_by_one=True)
    prefilled: list[Piece] = []
    decoded: list[int] = []
    replica.observer = lambda _s, _e, pieces, decoding: (prefilled.extend(pieces), decoded.append(decoding))  # type: ignore[func-returns-value]
    run_open(replica)
    assert replica.preempted == 1 and requests.preemptions == [0, 1]
    # 25 blocks of 16: each may hold 12 (192 tokens), so at 192 + 1 the last one goes with 92 + 1 tokens made.
    again = [piece.units for piece in prefilled if piece.request == 1][1]
    assert again == 100 + 93
    # Every token is made once: 2 first tokens and one at the second prefill, the others in decode steps.
    assert sum(decoded) == 2 * 200 - 2 - 1


def test_the_last_admitted_is_preempted_first_by_vllm_and_the_shortest_output_by_sglang() -> None:
    lengths = ([400, 100, 100], [300, 300, 300])
    first_gone = {}
    for engine in ("vllm:0.19.0", "sglang:0.5.9"):
        of = served("llama-3.1-8b", engine)
        requests = store([0.0, 0.5, 1.0], *lengths)
        replica = replica_of(of, requests, pool_tokens=900)
        if engine.startswith("sglang"):
            replica.rules = replace(replica.rules, reserve="prompt")  # let all three in
        run_open(replica)
        first_gone[engine] = requests.preemptions
    assert first_gone["vllm:0.19.0"][0] == 0 and first_gone["vllm:0.19.0"][2] > 0
    assert first_gone["sglang:0.5.9"][0] == 0 and first_gone["sglang:0.5.9"][2] > 0


def test_those_who_run_take_their_blocks_before_a_newcomer() -> None:
    """Ten blocks of 16: the first holds five, full, and asks for a sixth, so a prompt of five more must wait for its end."""
    of = served("llama-3.1-8b", "vllm:0.19.0")
    requests = store([0.0, 1e-4], [80, 80], [40, 40])
    replica = replica_of(of, requests, pool_tokens=160)
    run_open(replica)
    assert replica.preempted == 0
    assert requests.admitted[1] == pytest.approx(requests.finished[0] - of.clock.outside(80))


@given(scenarios(deployments=[("llama-3.1-8b", "tensorrt-llm:1.2.0", 1, 1)]))
def test_reserving_prompt_and_output_never_preempts(scenario: Scenario) -> None:
    assert scenario.run()[1].preempted == 0


def observed(replica: Scheduler) -> list[tuple[float, float, list[Piece], int]]:
    """Every step of a run, one by one."""
    steps: list[tuple[float, float, list[Piece], int]] = []
    replica.one_by_one = True
    replica.observer = lambda start, end, pieces, decoding: steps.append((start, end, list(pieces), decoding))
    run_open(replica)
    return steps


@given(scenarios(deployments=[("llama-3.1-8b", "vllm:0.19.0", 1, 1)]))
def test_no_step_exceeds_the_token_budget(scenario: Scenario) -> None:
    isl, osl = zip(*scenario.lengths, strict=True)
    replica = fresh(scenario, store([0.0] * len(isl), isl, osl))
    budget, slots = scenario.rules["budget"], scenario.rules["slots"]
    for _, _, pieces, decoding in observed(replica):
        assert decoding + sum(piece.units for piece in pieces) <= max(budget, slots + 1)
        assert decoding + len(pieces) <= slots


@pytest.mark.parametrize("engine", ["sglang:0.5.9", "vllm:0.6.0"])
def test_prefill_first_engines_never_mix(engine: str) -> None:
    requests = store(poisson(40, 20.0, 1), [700] * 40, [50] * 40)
    steps = observed(replica_of(served("llama-3.1-8b", engine), requests))
    assert any(pieces for _, _, pieces, _ in steps)
    assert all(not (pieces and decoding) for _, _, pieces, decoding in steps)


@pytest.mark.parametrize("most", [1, 2])
def test_at_most_so_many_prefill_at_once(most: int) -> None:
    requests = store([0.0] * 12, [900] * 12, [30] * 12)
    of = served("llama-3.1-8b", "vllm:0.19.0")
    steps = observed(replica_of(of, requests, most_prefilling=most, budget=8192.0))
    assert max(len(pieces) for _, _, pieces, _ in steps) == most


def test_whole_prompts_are_not_cut() -> None:
    requests = store([0.0] * 9, [3000] * 9, [20] * 9)
    steps = observed(replica_of(served("llama-3.1-8b", "tensorrt-llm:1.2.0"), requests))
    sizes = [piece.units for _, _, pieces, _ in steps for piece in pieces]
    assert sizes == [3000] * 9
    assert max(len(pieces) for _, _, pieces, _ in steps) == 8192 // 3000


def test_a_cached_prefix_is_not_prefilled() -> None:
    requests = store([0.0], [1000], [2])
    replica = replica_of(served("llama-3.1-8b", "vllm:0.19.0"), requests)
    replica.prefix_hit = 0.3
    assert observed(replica)[0][2] == [Piece(0, 700, 300, first=True)]


def test_prompts_are_held_while_others_decode() -> None:
    """With a hold of 20 steps a second prompt, alone, waits for 20 decode steps; without anything decoding, for none."""
    of = served("llama-3.1-8b", "tensorrt-llm:1.2.0")
    requests = store([0.0, 1e-4], [500, 500], [200, 200])
    steps = observed(replica_of(of, requests, hold_steps=20, hold_ratio=0.9))
    with_prompt = [index for index, (_, _, pieces, _) in enumerate(steps) if pieces]
    assert with_prompt == [0, 21]


def test_a_hold_ends_when_prompts_fill_their_share_of_the_budget() -> None:
    of = served("llama-3.1-8b", "tensorrt-llm:1.2.0")
    requests = store([0.0, 1e-4, 1e-4], [500, 2000, 2100], [200, 200, 200])
    # 2000 + 2100 + 1 decoding >= 0.5 * 8192: no wait; 0.51 * 8192 = 4177.9 is not reached.
    for ratio, expected in ((0.5, [0, 1]), (0.51, [0, 21])):
        steps = observed(
            replica_of(of, store(requests.arrival, requests.isl, requests.osl), hold_steps=20, hold_ratio=ratio)
        )
        assert [index for index, (_, _, pieces, _) in enumerate(steps) if pieces] == expected


def test_arrivals_are_looked_at_every_so_many_decode_steps() -> None:
    """One request decodes; another comes during decode step 3 or 14 of it, and is seen after 10 or 20."""
    clock = StubClock(prefill=1.0, decode=1.0)
    for arrival, seen_at in ((3.5, 11.0), (14.5, 21.0), (11.0, 11.0)):
        requests = store([0.0, arrival], [10, 10], [60, 5])
        run_open(stub_replica(requests, clock, SchedulerRules(4, mixed=False, poll_steps=10)))
        assert requests.admitted[1] == seen_at


def test_answers_end_after_whole_blocks_of_decode_steps() -> None:
    """Blocks of 10 steps: 2, 11 and 12 tokens take one, one and two blocks after the first token."""
    clock = StubClock(prefill=1.0, decode=1.0)
    requests = store([0.0, 0.0, 0.0], [10, 10, 10], [2, 11, 12])
    run_open(stub_replica(requests, clock, SchedulerRules(4, mixed=False, poll_steps=10, block_steps=10)))
    after_first = [end - first for end, first in zip(requests.finished, requests.first_token, strict=True)]
    assert after_first == [10.0, 10.0, 20.0]


def test_an_idle_engine_looks_at_once() -> None:
    requests = store([0.0, 20.3], [10, 10], [5, 5])
    run_open(stub_replica(requests, StubClock(), SchedulerRules(4, mixed=False, poll_steps=10)))
    assert requests.admitted == [0.0, 20.3]


def test_a_pipeline_s_first_token_waits_for_the_whole_pass() -> None:
    """Two stages: the next prompt starts after half of the pass, the first token is out after all of it."""
    of = served("llama-3.1-8b", "vllm:0.19.0", pp=2)
    requests = store([0.0, 0.0], [8192, 8192], [2, 2])
    run_open(replica_of(of, requests))
    alone_s, extra_s = of.clock.step([Piece(0, 8192.0, 0.0)], DecodeBatch(), False)
    assert extra_s == pytest.approx(alone_s)
    assert requests.first_token[0] == pytest.approx(2 * of.clock.serial + 2 * alone_s + of.clock.outside(8192))
    assert requests.admitted[1] == pytest.approx(2 * of.clock.serial + alone_s)


def test_a_windowed_layer_holds_its_window_of_every_sequence() -> None:
    """gpt-oss-20b: 12 of 24 layers look 128 tokens back; 2 * 8 heads * 64 * 2 bytes = 2,048 bytes a token and layer."""
    of = served("gpt-oss-20b", "vllm:0.19.0")
    # 127 cached tokens and the one in flight are 8 blocks of 16, and one block more: 144 tokens.
    assert of.pool.fixed_bytes == 12 * 144 * 2048
    assert of.pool.block_bytes == 12 * 16 * 2048


def test_requests_that_come_at_once_reach_the_scheduler_when_the_servers_thread_has_handled_all() -> None:
    """Three at once are seen 12 ms later, one that comes 5 ms after them at 16 ms; a late one finds the thread free."""
    of = served("llama-3.1-8b", "vllm:0.19.0")
    requests = store([0.0, 0.0, 0.0, 0.005, 5.0], [500] * 5, [2] * 5)
    replica = replica_of(of, requests)
    replica.clock = replace(of.clock, front_end=FrontEnd(per_request_ms=10.0, per_prompt_token_us=0.0, serial_ms=4.0))
    replica.rules = replace(replica.rules, ahead=False)
    pieces = [Piece(n, 500.0, 0.0) for n in range(3)]
    alone, three = (replica.clock.step(pieces[:count], replica.batch, False)[0] for count in (1, 3))
    run_open(replica)
    assert three > 0.004  # so the fourth is seen during the prefill of the others
    assert requests.admitted == pytest.approx([0.012, 0.012, 0.012, 0.012 + three, 5.004])
    assert requests.first_token[4] - 5.0 == pytest.approx(0.014 + alone)
    assert replica.in_flight == 0


def test_time_outside_the_steps_delays_a_request_and_no_other() -> None:
    """TTFT and E2E grow by it, ITL does not, and a client of a closed loop sends its next request that much later."""
    of = served("llama-3.1-8b", "vllm:0.19.0")
    outside_s = of.clock.outside(500) + of.clock.serial
    assert outside_s == pytest.approx(0.012 + 500 * 5e-6)
    none = replace(of.clock, front_end=FrontEnd(per_request_ms=0.0, per_prompt_token_us=0.0))
    ends = {}
    for clock in (of.clock, none):
        requests = store([0.0, 5.0], [500, 500], [100, 100])
        replica = replica_of(of, requests)
        replica.clock = clock
        run_open(replica)
        loop = replica_of(of, Requests())
        loop.clock = clock
        run.closed_loop(loop.requests, loop, in_flight=1, count=3, lengths=repeated(500, 100))
        ends[clock is none] = requests, loop.requests
    (late, late_loop), (prompt, prompt_loop) = ends[False], ends[True]
    assert late.first_token == pytest.approx([at + outside_s for at in prompt.first_token])
    assert late.finished == pytest.approx([at + outside_s for at in prompt.finished])
    assert late.admitted == pytest.approx([at + of.clock.serial for at in prompt.admitted])
    assert late_loop.arrival == pytest.approx([at + n * outside_s for n, at in enumerate(prompt_loop.arrival)])
    assert late_loop.arrival[1:] == pytest.approx(late_loop.finished[:-1])


def test_a_wholly_cached_prompt_still_computes_its_last_token() -> None:
    of, requests = served("llama-3.1-8b", "vllm:0.19.0"), store([0.0], [1000], [10])
    replica = replica_of(of, requests)
    replica.prefix_hit = 1.0
    run_open(replica)
    one, _ = of.clock.step([Piece(0, 1.0, 999.0)], DecodeBatch(), False)
    assert requests.first_token[0] == pytest.approx(of.clock.serial + one + of.clock.outside(1000))
