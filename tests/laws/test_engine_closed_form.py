"""Closed form against simulator: one step function, two ways to get from it to latency.

With evenly spaced arrivals nothing fluctuates: ITL is the closed form's mean step. Under Poisson arrivals a request meets
more than the mean, itself and those that came in the same clump, which the closed form adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from builders import ask, option, real_model
from engine_builders import run_open, store

from sizing.engine import deployment
from sizing.engine.requests import Arrivals, Lengths, arrival_times
from sizing.engine.simulation import Traffic, simulate
from sizing.replica import batching, timing
from sizing.replica import replica as candidates
from sizing.replica.capacity import Capacity, highest_stable, point_at_rate
from sizing.replica.timing import Timed, timed

MODELS = (("llama-3.1-8b", None, 1), ("llama-3.1-70b", "fp8", 4))
ENGINES = ("vllm:0.19.0", "sglang:0.5.9", "tensorrt-llm:1.2.0")
LENGTHS = ((500, 200), (3000, 300), (200, 800))  # chat, rag, long answers
CASES = [(model, engine, lengths) for model in MODELS for engine in ENGINES for lengths in LENGTHS]
# Share of the highest stable rate -> how far mean ITL, and mean TTFT, under Poisson arrivals may part.
ITL_TOLERANCE = {0.2: 0.02, 0.4: 0.03, 0.6: 0.05, 0.75: 0.1}
TTFT_TOLERANCE = {0.2: 0.03, 0.4: 0.05, 0.6: 0.07, 0.75: 0.13}
# Where prefill goes first, prompts that come while others are prefilled hold decoding up again: convoys, the longer the
# more a step with prefill takes beside a decode step (here 56 ms of launches beside 12 ms).
CONVOY_ITL_TOLERANCE = {0.2: 0.02, 0.4: 0.04, 0.6: 0.12, 0.75: 0.25}
# Even arrivals at few in flight meet fewer others than Poisson ones, for which the closed form counts.
EVEN_ITL_TOLERANCE = 0.03
REQUESTS, EVEN_REQUESTS = 2500, 600  # even arrivals fluctuate in nothing, so that few tell the mean


@dataclass(frozen=True, slots=True)
class Compared:
    """One deployment's closed form with its highest stable rate."""

    replica: candidates.Replica
    load: Timed
    isl: int
    osl: int
    model_name: str

    @property
    def most(self) -> Capacity:
        ceiling = self.load.most_decoding
        full = batching.open_loop(self.load.curves, self.load.batching, np.array([ceiling]))
        rate = float(full.requests_per_s[0]) / max(1.0, float(full.prefill_share[0]))
        return Capacity(rate, rate, ceiling, "")

    @property
    def queued(self) -> float:
        """Requests/s with all slots full and others waiting."""
        ceiling = self.load.most_decoding
        return float(timing.queued_per_s(self.load.curves, self.load.batching, np.array([ceiling]))[0])

    def predicted(self, rate: float) -> tuple[float, float]:
        """Mean TTFT and ITL of the closed form."""
        point = point_at_rate(self.load, rate, self.most)
        return point.ttft_s["mean"], point.itl_s["mean"]

    def mean_step_s(self, rate: float) -> float:
        """Mean step of the closed form, b = X*(o-1)*S solved for S."""
        point = point_at_rate(self.load, rate, self.most)
        return point.decoding / point.requests_per_s / (self.osl - 1)

    def simulated(self, rate: float, arrivals: Arrivals, count: int = REQUESTS) -> tuple[float, float]:
        """Mean TTFT and ITL of the simulator, ramp and drain left out."""
        times = arrival_times(count, rate, arrivals, np.random.default_rng(1)).tolist()
        requests = store(times, [self.isl] * count, [self.osl] * count)
        (replica,) = deployment.schedulers(deployment.deployment_of(self.load), requests, longest=self.isl + self.osl)
        run_open(replica)
        steady = slice(count // 5, count * 9 // 10)
        arrival, first, finished = (
            np.array(column)[steady] for column in (requests.arrival, requests.first_token, requests.finished)
        )
        return float((first - arrival).mean()), float(((finished - first) / (self.osl - 1)).mean())


@cache
def compared(model: tuple[str, str | None, int], engine: str, lengths: tuple[int, int]) -> Compared:
    name, precision, tp = model
    isl, osl = lengths
    request = ask(real_model(name), engine=engine, isl=isl, osl=osl, serving={"tp": tp})
    found = candidates.candidates(request.service, option("h100-sxm"), precision)
    candidate = next(one for one in found if isinstance(one, candidates.Replica))
    return Compared(candidate, timed(candidate), isl, osl, name)


@pytest.mark.parametrize(("model", "engine", "lengths"), CASES)
@pytest.mark.parametrize("share", [0.2])
def test_even_arrivals_give_the_closed_form_s_mean_step(
    model: tuple[str, str | None, int], engine: str, lengths: tuple[int, int], share: float
) -> None:
    """At loads where hardly two prompts share a step, for even arrivals share steps otherwise than Poisson ones."""
    case = compared(model, engine, lengths)
    rate = share * case.most.requests_per_s
    itl_s = case.simulated(rate, "even", EVEN_REQUESTS)[1]
    assert case.mean_step_s(rate) == pytest.approx(itl_s, rel=EVEN_ITL_TOLERANCE)


@pytest.mark.parametrize(("model", "engine", "lengths"), CASES)
def test_poisson_arrivals_part_within_what_fluctuation_explains(
    model: tuple[str, str | None, int], engine: str, lengths: tuple[int, int]
) -> None:
    case = compared(model, engine, lengths)
    tolerances = CONVOY_ITL_TOLERANCE if engine.startswith("sglang") else ITL_TOLERANCE
    for share, tolerance in tolerances.items():
        rate = share * case.most.requests_per_s
        (ttft_s, itl_s), (closed_ttft_s, closed_itl_s) = case.simulated(rate, "poisson"), case.predicted(rate)
        assert closed_itl_s == pytest.approx(itl_s, rel=tolerance), share
        assert closed_ttft_s == pytest.approx(ttft_s, rel=TTFT_TOLERANCE[share]), share


@pytest.mark.parametrize("engine", ENGINES)
def test_alone_a_request_takes_the_closed_form_s_times(engine: str) -> None:
    """No queue, no mixing: only the curves' interpolation and the mean context stand between the two."""
    case = compared(MODELS[0], engine, (500, 200))
    ttft_s, itl_s = case.simulated(0.01, "even", EVEN_REQUESTS)
    assert ttft_s == pytest.approx(case.load.solo_ttft_s, rel=0.005)
    assert itl_s == pytest.approx(case.load.solo_itl_s, rel=0.005)


@pytest.mark.parametrize(("model", "engine", "lengths"), CASES)
def test_more_than_the_highest_rate_builds_a_queue(
    model: tuple[str, str | None, int], engine: str, lengths: tuple[int, int]
) -> None:
    """At 1.3 times what is served with others waiting, TTFT grows with the length of the run; at 0.75 of the stable rate it does not."""
    case = compared(model, engine, lengths)
    over = case.simulated(1.3 * case.queued, "even")[0]
    under = case.simulated(0.75 * case.most.requests_per_s, "even", EVEN_REQUESTS)[0]
    assert over > 5 * under


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lengths", LENGTHS[:2])
def test_full_slots_serve_what_a_closed_loop_of_all_slots_does(engine: str, lengths: tuple[int, int]) -> None:
    """What ends is replaced at once, several prompts in a step: where launches decide that, twice what arrivals alone would get."""
    case = compared(MODELS[1], engine, lengths)
    slots = case.load.slots
    traffic = Traffic(Lengths(case.isl), Lengths(case.osl), 4 * slots, in_flight=slots, longest=case.isl + case.osl)
    run = simulate(deployment.deployment_of(case.load), traffic)
    start_s = slots * case.load.curves.serial_s  # in which the server's thread handles those that start the run
    assert case.queued == pytest.approx(run.completed / (run.duration_s - start_s), rel=0.05)


FULL_SLOTS = (("qwen3-30b-a3b", {"tp": 1, "dp": 8, "ep": 8}, (1000, 500)), ("llama-3.1-8b", {"tp": 1}, (100, 500)))
FULL_TOLERANCE = (
    0.15  # sequences that end in waves leave slots empty, and an engine that guesses outputs lets some more in
)


@pytest.mark.parametrize(("model", "layout", "lengths"), FULL_SLOTS)
def test_full_slots_bring_more_than_poisson_arrivals_that_hold_decoding_up(
    model: str, layout: dict[str, int], lengths: tuple[int, int]
) -> None:
    """Where prefill goes first, the highest rate is that of full slots: there E2E is what Little's law makes of them."""
    isl, osl = lengths
    request = ask(real_model(model), engine="sglang:0.5.9", isl=isl, osl=osl, serving=layout)
    found = candidates.candidates(request.service, option("h100-sxm"), None)
    load = timed(next(one for one in found if isinstance(one, candidates.Replica)))
    rate = 0.9 * load.highest_per_s
    brought = timing.requests_per_s(load.curves, load.batching, np.array([load.most_decoding]))[0]
    point = point_at_rate(load, rate, highest_stable(load))
    assert point.requests_per_s == pytest.approx(rate, rel=1e-6)
    traffic = Traffic(
        Lengths(isl), Lengths(osl), 5 * load.slots, rate, warm_up=2 * load.slots, cool_down=load.slots, exact_rate=True
    )
    run = simulate(deployment.deployment_of(load), traffic)
    assert run.stable
    assert run.requests_per_s == pytest.approx(rate, rel=0.03)
    if rate > brought:
        assert point.e2e_s["mean"] == pytest.approx(run.latencies_s["e2e"]["mean"], rel=FULL_TOLERANCE)
        assert point.running == load.slots


PROMPTS = (
    ("llama-3.1-8b", "l40s", {"tp": 1, "pp": 1}, 512),
    ("llama-3.1-8b", "l40s", {"tp": 2, "pp": 2}, 512),
    ("llama-3.1-70b", "h100-sxm", {"tp": 4, "pp": 1}, 3000),
)


@pytest.mark.parametrize(("model", "gpu", "layout", "isl"), PROMPTS)
def test_prompts_alone_wait_as_long_as_simulated_ones(model: str, gpu: str, layout: dict[str, int], isl: int) -> None:
    """With one token of output a request waits for the step before it and for its own batch: the tail is far from the mean.

    Under a heavier load the tail of a pipeline is taken too long, as its batches share the wait more evenly.
    """
    request = ask(real_model(model), engine="vllm:0.19.0", isl=isl, osl=1, serving=layout)
    found = candidates.candidates(request.service, option(gpu), None)
    load = timed(next(one for one in found if isinstance(one, candidates.Replica)))
    for share in (0.2, 0.4, 0.6):
        rate = share * load.highest_per_s
        point = point_at_rate(load, rate, highest_stable(load))
        run = simulate(deployment.deployment_of(load), Traffic(Lengths(isl), Lengths(1), 8000, rate, exact_rate=True))
        ttft_s = run.latencies_s["ttft"]
        assert point.ttft_s["mean"] == pytest.approx(ttft_s["mean"], rel=0.04), share
        assert point.ttft_s["p95"] == pytest.approx(ttft_s["p95"], rel=0.1), share


LONG_PROMPTS = (
    ("llama-3.1-70b", "fp8", "h100-sxm", "vllm:0.19.0", 8, 127_000),
    ("llama-3.1-70b", "fp8", "l40s", "vllm:0.19.0", 4, 2000),
    ("llama-3.1-8b", None, "l40s", "sglang:0.5.9", 1, 12_000),
)


@pytest.mark.parametrize(("model", "precision", "gpu", "engine", "tp", "isl"), LONG_PROMPTS)
def test_prompts_beyond_the_budget_wait_for_the_whole_prompt_before_them(
    model: str, precision: str | None, gpu: str, engine: str, tp: int, isl: int
) -> None:
    """One prompt fills the budgets of its steps: prompts queue as in M/D/1, and few of them wait for long."""
    request = ask(real_model(model), engine=engine, isl=isl, osl=200, serving={"tp": tp})
    found = candidates.candidates(request.service, option(gpu), precision)
    load = timed(next(one for one in found if isinstance(one, candidates.Replica)))
    for share in (0.15, 0.4):
        rate = share * load.highest_per_s
        point = point_at_rate(load, rate, highest_stable(load))
        run = simulate(deployment.deployment_of(load), Traffic(Lengths(isl), Lengths(200), 4000, rate, exact_rate=True))
        ttft_s = run.latencies_s["ttft"]
        assert point.ttft_s["mean"] == pytest.approx(ttft_s["mean"], rel=0.02), share
        for name in ("p90", "p95", "p99"):
            assert point.ttft_s[name] == pytest.approx(ttft_s[name], rel=0.08), (share, name)


FEW_SLOTS = (("llama-3.1-70b", None, 2, 2000, {}), ("llama-3.1-8b", None, 1, 1000, {"max_num_seqs": 16}))


@pytest.mark.parametrize(("model", "precision", "tp", "isl", "settings"), FEW_SLOTS)
def test_requests_wait_for_a_slot_where_there_are_few(
    model: str, precision: str | None, tp: int, isl: int, settings: dict[str, int]
) -> None:
    """A queue with as many servers as slots: without it p95 of TTFT was 86 to 97 % short at these loads."""
    request = ask(real_model(model), engine="vllm:0.19.0", isl=isl, osl=200, serving={"tp": tp, **settings})
    found = candidates.candidates(request.service, option("h100-sxm"), precision)
    load = timed(next(one for one in found if isinstance(one, candidates.Replica)))
    for share in (0.6, 0.75):
        rate = share * load.highest_per_s
        point = point_at_rate(load, rate, highest_stable(load))
        run = simulate(deployment.deployment_of(load), Traffic(Lengths(isl), Lengths(200), 6000, rate, exact_rate=True))
        assert point.ttft_s["mean"] == pytest.approx(run.latencies_s["ttft"]["mean"], rel=0.25), share
        assert point.ttft_s["p95"] == pytest.approx(run.latencies_s["ttft"]["p95"], rel=0.4), share


def test_the_thread_of_the_front_end_bounds_the_rate_and_makes_a_tail() -> None:
    """A small model takes more prompts than one thread hands on: its wait is M/D/1, and the highest rate is the thread's."""
    request = ask(real_model("qwen3-0.6b"), isl=100, osl=10, serving={"tp": 1})
    found = candidates.candidates(request.service, option("h100-sxm"), None)
    load = timed(next(one for one in found if isinstance(one, candidates.Replica)))
    assert load.highest_per_s == pytest.approx(1 / load.curves.serial_s)
    for share in (0.5, 0.8):
        point = point_at_rate(load, share * load.highest_per_s, highest_stable(load))
        traffic = Traffic(Lengths(100), Lengths(10), 20_000, share * load.highest_per_s, exact_rate=True)
        run = simulate(deployment.deployment_of(load), traffic)
        for name in ("mean", "p95"):
            assert point.ttft_s[name] == pytest.approx(run.latencies_s["ttft"][name], rel=0.2), (share, name)


@pytest.mark.parametrize("engine", ["vllm:0.33.0", "sglang:0.5.9"])
def test_a_lone_slot_serves_one_request_after_the_other(engine: str) -> None:
    """The cache holds one prompt of 100,000 tokens: nothing lengthens its decode steps, and the wait is that of an M/D/1 queue."""
    request = ask(real_model("llama-3.1-70b"), engine=engine, isl=100_000, osl=1000, serving={"tp": 1})
    found = candidates.candidates(request.service, option("h200-sxm"), "fp8")
    load = timed(next(one for one in found if isinstance(one, candidates.Replica)))
    assert load.slots == 1
    alone_s = load.solo_ttft_s + 999 * load.solo_itl_s
    for share in (0.3, 0.8):
        point = point_at_rate(load, share * load.highest_per_s, highest_stable(load))
        taken = point.requests_per_s * alone_s
        assert point.running == pytest.approx(taken, rel=0.01) and point.running < 1
        assert point.itl_s["mean"] == point.itl_s["p99"] == pytest.approx(load.solo_itl_s, rel=0.01)
        assert point.e2e_s["mean"] == pytest.approx(alone_s * (1 + taken / (2 * (1 - taken))), rel=0.02)
