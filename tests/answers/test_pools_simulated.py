"""Laws of both simulated pools: every token is made once, links carry one prompt after another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import kernels_for, real_gpu, real_model

from sizing.answers import verify
from sizing.answers.sizes import VERIFY
from sizing.engine.deployment import Deployment
from sizing.engine.requests import Lengths
from sizing.engine.rules import of_engine
from sizing.engine.simulation import Run, Traffic, simulate
from sizing.engine.transfer import PoolLink, Transfer
from sizing.model import memory
from sizing.model.architecture import Layout

NO_TIME = PoolLink("none", math.inf, 0.0)

INSTANT = Transfer(131_072.0, 0.0, NO_TIME)


def deployed(replicas: int = 1, tp: int = 1) -> Deployment:
    """llama-3.1-8b on one H100 under vLLM 0.19."""
    model, gpu, layout = real_model("llama-3.1-8b"), real_gpu("h100-sxm"), Layout(tp=tp)
    kernels = kernels_for(model, gpu, layout)
    used = memory.use(kernels.shard, gpu, 8192)
    return Deployment(kernels, used, of_engine(kernels.settings), replicas)


def traffic(count: int, rate: float, isl: int = 2000, osl: int = 300, **changes: Any) -> Traffic:
    return Traffic(Lengths(isl), Lengths(osl), count, rate_per_s=rate, **changes)


def handed_over(prefill: Deployment, decode: Deployment, transfer: Transfer, load: Traffic) -> Run:
    return simulate(replace(decode, prefill=prefill, transfer=transfer), load)


@pytest.fixture(scope="module")
def busy() -> Run:
    """Two prefill replicas and one that decodes, 24 requests/s, no time between them."""
    return handed_over(deployed(2), deployed(1), INSTANT, traffic(3000, 24.0))


def test_alone_ttft_is_the_prefill_and_itl_the_decode_step() -> None:
    """A request a minute, a link without delay: TTFT as in a run that serves as one; ITL of decode steps alone."""
    quiet = traffic(20, 1 / 60, arrivals="even")
    apart = handed_over(deployed(), deployed(), INSTANT, quiet)
    as_one = simulate(deployed(), quiet)
    for name in ("ttft", "itl", "e2e"):
        assert apart.latencies_s[name]["mean"] == pytest.approx(as_one.latencies_s[name]["mean"], rel=1e-9)


def test_ttft_grows_by_the_transfer_and_itl_stays() -> None:
    quiet = traffic(20, 1 / 60, arrivals="even")
    way = Transfer(131_072.0, 0.0, PoolLink("network", 50e9, 0.0))
    without = handed_over(deployed(), deployed(), INSTANT, quiet).latencies_s
    found = handed_over(deployed(), deployed(), way, quiet)
    assert found.transfer_s == pytest.approx(2000 * 131_072 / 50e9)
    assert found.latencies_s["ttft"]["mean"] - without["ttft"]["mean"] == pytest.approx(found.transfer_s)
    assert found.latencies_s["itl"]["mean"] == pytest.approx(without["itl"]["mean"], rel=1e-9)


def test_every_token_is_made_once(busy: Run) -> None:
    requests = busy.requests
    assert busy.completed == 3000
    assert sum(requests.generated) == 3000 * 300
    assert all(
        a <= admitted <= end and a < first <= end
        for a, admitted, first, end in zip(
            requests.arrival, requests.admitted, requests.first_token, requests.finished, strict=True
        )
    )


def test_littles_law_holds_in_both_pools(busy: Run) -> None:
    """Requests in a pool on average = requests/s * seconds there; a request is in the decode pool from its cache's arrival."""
    front_end_s = busy.requests.first_token[0] - busy.parts[1].requests.arrival[0]
    for pool, replicas, outside_s in ((busy.parts[0], 2, front_end_s), (busy.parts[1], 1, 0.0)):
        held = pool.batch_mean * replicas + pool.queue_mean
        there_s = pool.latencies_s["e2e"]["mean"] - outside_s
        assert held == pytest.approx(pool.requests_per_s * there_s, rel=1e-3)


def test_decode_replicas_never_see_a_prompt(busy: Run) -> None:
    """ITL is below what serving as one on the same three GPUs makes of it, and has no spread from prompts."""
    as_one = simulate(deployed(3), traffic(3000, 24.0)).latencies_s["itl"]
    itl = busy.latencies_s["itl"]
    apart = itl["p99"] / itl["p50"]
    assert apart < as_one["p99"] / as_one["p50"]


def test_a_link_carries_one_prompt_after_another() -> None:
    """Ten prompts prefilled in one step, 0.1 s each on the link: the last arrives 1 s after the step's end."""
    way = Transfer(1e5, 0.0, PoolLink("network", 1e8, 0.0))  # 100 tokens: 0.1 s
    at_once = Traffic(Lengths(100), Lengths(50), 10)
    pool = deployed()
    inside = replace(pool.kernels, shard=replace(pool.shard, settings=pool.shard.settings.in_process()))  # no front end
    found = handed_over(replace(pool, kernels=inside), pool, way, at_once)
    first = sorted(found.requests.first_token)
    assert np.allclose(np.diff(first), 0.1)
    assert found.transfer_s == pytest.approx(0.55)  # (0.1 + ... + 1.0)/10


def test_outputs_of_one_token_never_reach_the_decode_pool() -> None:
    found = handed_over(deployed(), deployed(), INSTANT, traffic(50, 5.0, osl=1))
    assert found.completed == 50
    assert not found.parts[1].completed
    assert found.latencies_s["ttft"]["mean"] == found.latencies_s["e2e"]["mean"]


def test_what_is_preempted_in_the_decode_pool_is_computed_again_there() -> None:
    small = deployed()
    small = replace(small, memory=small.memory._replace(kv_cache_gib=2.0))  # 16,384 tokens: seven requests at their end
    found = handed_over(deployed(), small, INSTANT, traffic(60, 20.0))
    assert found.parts[1].preemptions > 0
    assert found.completed == 60
    assert sum(found.requests.generated) == 60 * 300


def test_equal_seeds_give_equal_runs(busy: Run) -> None:
    again = handed_over(deployed(2), deployed(1), INSTANT, traffic(3000, 24.0))
    assert again.requests.finished == busy.requests.finished


def test_large_pools_are_simulated_in_part_at_no_less_load() -> None:
    assert verify.part_of(4, 2) == (2, 1, 0.5)
    prefills, decodes, share = verify.part_of(70, 31)
    assert prefills + decodes <= VERIFY.most_replicas
    assert share / prefills >= 1 / 70 and share / decodes >= 1 / 31
