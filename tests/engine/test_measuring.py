"""What is measured of a run: the window, conservation, clients over replicas, and what a short run says of a long one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from builders import ask, kernels_for, option, real_gpu, real_model

from sizing.answers import verify
from sizing.answers.search import search
from sizing.engine.deployment import Deployment, deployment_of
from sizing.engine.requests import Lengths
from sizing.engine.rules import of_engine
from sizing.engine.run import ROUTINGS
from sizing.engine.simulation import Run, Traffic, simulate
from sizing.model import memory
from sizing.model.architecture import Layout
from sizing.specs.workload import Tokens


@cache
def deployed(replicas: int = 1) -> Deployment:
    model, card, layout = real_model("llama-3.1-8b"), real_gpu("h100-sxm"), Layout()
    kernels = kernels_for(model, card, layout)
    used = memory.use(kernels.shard, card, 4096)
    return Deployment(kernels, used, of_engine(kernels.settings), replicas)


LOAD = Traffic(Lengths(500), Lengths(100), 400, longest=4096)


def running(served: Run) -> float:
    """Mean number of requests between being let in and their last token, from their own times (no front end)."""
    requests = served.requests
    clock = kernels_for(deployed().shard.model, real_gpu("h100-sxm"), Layout()).settings.front_end
    outside_s = clock.per_request_ms / 1e3 + 500 * clock.per_prompt_token_us / 1e6
    left = np.asarray(requests.finished) - outside_s - np.asarray(requests.admitted)
    return float(left.sum()) / served.duration_s


def test_a_limit_far_above_all_lengths_takes_no_cache_of_windowed_layers() -> None:
    """Half of Gemma-2's layers keep a window of 4,096 tokens: a pool of 2 GiB holds as many of 160 tokens, whatever is allowed."""
    model, card = real_model("gemma-2-9b"), real_gpu("rtx-4090")
    kernels = kernels_for(model, card, Layout(), engine="vllm:0.33.0")
    few = Deployment(kernels, memory.use(kernels.shard, card, 4096), of_engine(kernels.settings))
    at_once = Traffic(Lengths(100), Lengths(60), 60, longest=4096)
    for load in (at_once, replace(at_once, in_flight=40)):
        assert simulate(few, load).batch_mean == simulate(few, replace(load, longest=160)).batch_mean > 20


def test_a_limit_ends_every_mean_at_the_same_time() -> None:
    """At 10 a second, 400 requests take 40 s. Cut at 10 s, about 100 have come, and the run was 10 s long."""
    cut = simulate(deployed(), replace(LOAD, rate_per_s=10.0), limit_s=10.0)
    assert cut.duration_s == 10.0
    ends = np.asarray(cut.requests.finished)
    assert cut.completed == int((ends <= 10.0).sum()) < cut.arrived
    assert cut.requests_per_s == pytest.approx(cut.completed / 10.0)


def test_means_over_time_follow_from_the_requests_own_times() -> None:
    """Little's law holds exactly over a whole run: the integral of the number running is the sum of their times."""
    whole = simulate(deployed(), replace(LOAD, rate_per_s=10.0))
    assert whole.batch_mean == pytest.approx(running(whole), rel=1e-9)


@pytest.mark.parametrize(("clients", "replicas", "count"), [(5, 2, 51), (100, 8, 1000), (3, 4, 30), (1000, 1, 50)])
def test_a_closed_loop_spreads_its_clients_and_loses_none(clients: int, replicas: int, count: int) -> None:
    served = simulate(deployed(replicas), replace(LOAD, count=count, in_flight=clients))
    assert served.arrived == served.completed == len(served.requests) == count
    # All that can be in flight are at once: the first of every client start together.
    starting = Counter(served.requests.arrival)[0.0]
    assert starting == min(clients, count)
    events = [(at, 1) for at in served.requests.arrival] + [(at, -1) for at in served.requests.finished]
    in_flight = np.cumsum([change for _, change in sorted(events)])
    assert in_flight.max() == min(clients, count)


def test_clients_that_do_not_divide_differ_by_one_at_most() -> None:
    """7 clients on 3 replicas: 2, 2 and 3."""
    served = simulate(deployed(3), replace(LOAD, count=70, in_flight=7))
    assert served.batch_max == 3
    assert served.requests_per_s == pytest.approx(70 / max(served.requests.finished))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_serves_all(routing: str) -> None:
    served = simulate(deployed(3), replace(LOAD, rate_per_s=30.0), routing=routing)  # type: ignore[arg-type]
    assert served.completed == 400


def test_a_random_router_leaves_each_replica_the_chance_of_one_alone() -> None:
    """Thinned at random a Poisson stream is Poisson at each replica; turns even it out, so prompts wait less."""
    alone = simulate(deployed(), replace(LOAD, count=8000, rate_per_s=20.0))
    random = simulate(deployed(4), replace(LOAD, count=32000, rate_per_s=80.0))
    in_turn = simulate(deployed(4), replace(LOAD, count=32000, rate_per_s=80.0), routing="round-robin")
    for name in ("ttft", "itl"):
        assert random.latencies_s[name]["mean"] == pytest.approx(alone.latencies_s[name]["mean"], rel=0.02)
        assert random.latencies_s[name]["p95"] == pytest.approx(alone.latencies_s[name]["p95"], rel=0.03)
    assert in_turn.latencies_s["ttft"]["p95"] < 0.9 * random.latencies_s["ttft"]["p95"]


def test_the_exact_rate_is_the_rate() -> None:
    """Chance brings 100 requests in 9.8 or 10.4 s; the exact rate of 10 a second in 10."""
    served = simulate(deployed(), replace(LOAD, count=100, rate_per_s=10.0, exact_rate=True))
    assert served.requests.arrival[-1] == pytest.approx(10.0)


def test_a_steady_window_is_free_of_the_start_and_the_end() -> None:
    """Requests of 100 tokens measured amid others: more run at once than over a run with its ramp and drain."""
    load = replace(LOAD, osl=Lengths(1000), count=600, rate_per_s=15.0)
    whole, steady = simulate(deployed(), load), simulate(deployed(), replace(load, warm_up=250, cool_down=150))
    assert steady.completed == 200
    assert steady.batch_mean > 1.1 * whole.batch_mean
    assert steady.latencies_s["itl"]["mean"] > whole.latencies_s["itl"]["mean"]


@pytest.mark.parametrize(
    ("model", "layout", "rate", "tokens"),
    [
        ("gpt-oss-120b", Layout(tp=2), 17.0, Tokens(isl=1000, osl=500)),
        ("llama-3.1-8b", Layout(), 20.0, Tokens(isl=500, osl=500)),
    ],
    ids=["some 300 in flight", "some 100 in flight"],
)
def test_what_estimate_simulates_is_what_a_long_run_measures(
    model: str, layout: Layout, rate: float, tokens: Tokens
) -> None:
    """However long requests take, the ramp is no part of the check (it would show too short an ITL).

    The mean of four checks with other arrivals, for the mean TTFT of one has a standard deviation of 1 to 2 % by chance.
    """
    request = ask(
        real_model(model),
        isl=tokens.isl,
        osl=tokens.osl,
        demand={"requests_per_s": rate},
        planning={"max_utilisation": 1.0},
        serving={"tp": layout.tp},
    )
    outcome = search(request.with_(gpu_types=(option("h100-sxm"),), precisions=(None,)))
    assert outcome.best is not None and outcome.best.pool.count == 1
    short = [verify.simulated(outcome.best, request, seed=seed).run for seed in range(4)]
    engine = deployment_of(outcome.best.pool.timed)
    long = simulate(engine, Traffic(Lengths(tokens.isl), Lengths(tokens.osl), 12_000, rate_per_s=rate, longest=request.service.max_model_len, warm_up=1500, cool_down=700, exact_rate=True, seed=7))  # fmt: skip
    for name in ("itl", "ttft", "e2e"):
        measured = np.mean([run.latencies_s[name]["mean"] for run in short if run is not None])
        assert measured == pytest.approx(long.latencies_s[name]["mean"], rel=0.015)


def test_waiting_for_the_step_in_progress_is_waiting() -> None:
    """The mean queue is the sum of all waits over the time of the run, though none finds the slots full."""
    served = simulate(deployed(), replace(LOAD, rate_per_s=24.0))
    requests = served.requests
    waits = np.asarray(requests.admitted) - np.asarray(requests.arrival)
    assert served.batch_max < deployed().rules.slots
    assert served.queue_mean == pytest.approx(float(waits.sum()) / served.duration_s, rel=1e-9)
    assert served.queue_mean > 0.05


def test_a_run_that_is_over_before_its_first_request_is_not_called_unstable() -> None:
    assert simulate(deployed(), replace(LOAD, rate_per_s=20.0, count=20, osl=Lengths(300))).stable
    assert simulate(deployed(), replace(LOAD, rate_per_s=20.0, count=500), limit_s=3.0).stable


def test_a_queue_that_grows_is_unstable_however_short_the_run() -> None:
    """Two slots and 20 requests/s that take a second or so each: some 18 a second stay behind."""
    few = replace(deployed(), rules=replace(deployed().rules, slots=2))
    assert not simulate(few, replace(LOAD, rate_per_s=20.0, count=200, osl=Lengths(300))).stable


@pytest.mark.parametrize("concurrency", [450, 1000])
def test_a_demand_in_flight_is_met_as_well_as_by_a_layout_that_is_given(concurrency: int) -> None:
    """Of the course's chat workload: a search over all layouts confirms no more GPUs than the best of them alone."""
    demand = {"concurrency": concurrency, "closed_loop": True}
    fields = {"demand": demand, "limits": {"ttft": "p95:1s", "itl": "50ms"}, "precision": "fp8"}
    found = {}
    for serving in ({}, {"tp": 1}, {"tp": 2}):
        request = ask(real_model("llama-3.1-70b"), isl=1155, osl=211, serving=serving, **fields)
        checked = verify.verify(search(request.with_(gpu_types=(option("h100-sxm"),), precisions=("fp8",))))
        assert checked.simulation.passed and checked.best is not None
        found[str(serving)] = checked.best.gpus
    assert found["{}"] <= min(found.values())


def test_the_headroom_asked_for_is_kept_when_checked() -> None:
    fields = {"demand": {"requests_per_s": 20.8}, "limits": {"ttft": "p95:1s", "itl": "50ms"}}
    for headroom in (0.1, 0.2):
        request = ask(real_model("llama-3.1-70b"), isl=1155, osl=211, planning={"headroom": headroom}, **fields)
        checked = verify.verify(search(request.with_(gpu_types=(option("h100-sxm"),), precisions=("fp8",))))
        best = checked.best
        assert checked.simulation.passed and best is not None
        assert best.pool.capacity.amount * best.pool.count >= 20.8 * (1 + headroom) * (1 - 1e-6)


def test_an_engine_is_not_sized_for_cards_that_it_does_not_run_on() -> None:
    request = ask(real_model("llama-3.1-8b"), engine="tensorrt-llm:1.2.0")
    outcome = search(request.with_(gpu_types=(option("mi300x"),), precisions=(None,)))
    assert outcome.best is None
    assert {entry.reason for entry in outcome.refusals} == {"engine"}


def test_offline_work_keeps_every_slot_full_and_no_more() -> None:
    """Prompts in prefill hold slots too; what is simulated is a load that never ends, at the rate that is answered."""
    request = ask(real_model("gpt-oss-20b"), isl=1500, osl=300, mode="offline", serving={"tp": 1})
    checked = verify.verify(search(request.with_(gpu_types=(option("h100-sxm"),), precisions=(None,))))
    best = checked.best
    assert checked.simulation.passed and checked.simulation.tries == 1 and best is not None and best.run is not None
    assert best.pool.point.running == pytest.approx(best.pool.timed.slots, rel=0.03)
    assert best.run.batch_max <= best.pool.timed.slots
    assert best.run.requests_per_s == pytest.approx(best.requests_per_s, rel=0.1)
