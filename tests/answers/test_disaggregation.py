"""Separate pools for prefill and decode: the transfer of the cache, DistServe's queue, the closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import ask, kernels_for, option, real_gpu, real_model

from sizing.answers import pools as disaggregation
from sizing.answers import pools as pooled
from sizing.answers import verify
from sizing.answers.answer import Answer
from sizing.catalog import shelf
from sizing.engine import transfer
from sizing.engine.transfer import PoolLink, Transfer
from sizing.model.architecture import Layout
from sizing.question.question import PoolSpace, SeparatePools
from sizing.replica import batching, links
from sizing.replica import curves as curves_of
from sizing.replica.curves import Batching
from sizing.specs.optimisations import HandOver, PoolLayout


def asked(
    prefill: str = "h100-sxm",
    decode: str = "h100-sxm",
    *,
    of: tuple[PoolLayout, PoolLayout] = (PoolLayout(), PoolLayout()),
) -> SeparatePools:
    return SeparatePools(
        PoolSpace((option(prefill),), of[0]),
        PoolSpace((option(decode),), of[1]),
        shelf.only(HandOver),
    )


# --- the way between the pools ------------------------------------------------------------------------------------


def test_a_prompt_of_2000_tokens_takes_5_ms_at_50_gb_per_s() -> None:
    """Llama-3-8B in bf16: 32 layers * 8 heads * 128 * 2 * 2 B = 131,072 B a token; * 2,000 = 0.262 GB; / 50 GB/s = 5.24 ms."""
    per_token, fixed = transfer.cache_rates(kernels_for(real_model("llama-3.1-8b"), real_gpu("h100-sxm")).shard)
    assert (per_token, fixed) == (131_072, 0)
    assert links.send_s(per_token * 2000, alpha_s=0.0, bytes_per_s=50e9) == pytest.approx(5.24e-3, rel=1e-3)


def test_the_gpu_with_the_most_to_send_or_take_bounds_the_transfer() -> None:
    """TP1 to TP4: one GPU sends all of it. TP4 to TP4: a quarter each. MLA: every GPU of TP8 takes the whole latent."""
    gpu = real_gpu("h100-sxm")

    def per_token(name: str, prefill: int, decode: int) -> float:
        one, other = (kernels_for(real_model(name), gpu, Layout(tp=tp)) for tp in (prefill, decode))
        found = transfer.transfer_of(one, other, within_node=True, by_layer=False)
        return found.bytes_per_token

    assert per_token("llama-3.1-8b", 1, 4) == 131_072
    assert per_token("llama-3.1-8b", 4, 4) == 131_072 / 4
    assert per_token("deepseek-v3", 8, 8) == 61 * 576 * 2


def test_within_a_node_the_cache_goes_over_nvlink_else_over_the_network() -> None:
    """H100: 0.6 of 450 GB/s; 0.72 of 400 Gbit/s = 36 GB/s. L40S has no NVLink: PCIe 4, 0.6 of 32 GB/s."""
    h100 = kernels_for(real_model("llama-3.1-8b"), real_gpu("h100-sxm"))
    assert transfer.link_between(h100, h100, within_node=True).bytes_per_s == pytest.approx(0.6 * 450e9)
    between = transfer.link_between(h100, h100, within_node=False)
    assert (between.kind, between.bytes_per_s) == ("network", pytest.approx(0.72 * 50e9))
    l40s = kernels_for(real_model("llama-3.1-8b"), real_gpu("l40s"))
    assert transfer.link_between(l40s, l40s, within_node=True).kind == "PCIe"
    assert transfer.link_between(h100, l40s, within_node=False).bytes_per_s <= between.bytes_per_s


def test_layer_by_layer_only_what_prefill_does_not_hide_is_left() -> None:
    """32 layers, 64 ms on the link. A prefill of 320 ms hides all but the last layer's 2 ms; one of 32 ms hides 31 ms."""
    way = Transfer(1e6, 0.0, PoolLink("network", 1e9, 0.0), layers=32)
    assert way.exposed_s(64, 0.320) == pytest.approx(2e-3)
    assert way.exposed_s(64, 0.032) == pytest.approx(64e-3 - 31e-3)
    assert replace(way, layers=0).exposed_s(64, 0.320) == pytest.approx(64e-3)


# --- the closed form ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Answer:
    """Llama-3.1-70B at 20 requests/s with a tight limit on ITL."""
    found = disaggregation.search(tight().with_(pools=asked()))
    assert found.best is not None
    return found.best


def tight(**fields: Any) -> Any:
    limits = {"ttft": "p95:800ms", "itl": "25ms"}
    return ask(
        real_model("llama-3.1-70b"),
        isl=2000,
        osl=300,
        **{"limits": limits, "demand": {"requests_per_s": 20.0}, **fields},
    )


def test_a_prefill_pool_of_one_prompt_a_step_is_distserves_queue(pair: Answer) -> None:
    """TTFT = D + R*D^2/(2*(1-R*D)) where the budget holds one prompt; at R*D = 0.6 that is D*(1 + 0.6/0.8) = 1.75 D."""
    load = pair.prefill.undelayed
    service = replace(load.batching, budget_tokens=load.batching.isl, pp=1, dp=1, even_stages=None)
    curves = replace(
        load.curves, front_end_s=0.0, largest_stage=1.0, last_stage=1.0
    )  # whole, whatever layout was found
    prompt_s = float(np.asarray(curves_of.prefill_step_s(curves, service, 0.0)))
    for share in (0.3, 0.6, 0.8):
        point = batching.open_loop(curves, service, np.array([share]))
        rate = float(point.requests_per_s[0])
        assert rate * prompt_s == pytest.approx(share, rel=1e-6)
        expected_s = prompt_s + rate * prompt_s**2 / (2 * (1 - rate * prompt_s))
        assert float(point.ttft_s["mean"][0]) == pytest.approx(expected_s, rel=1e-3)


def test_prompts_that_share_a_step_wait_for_each_other(pair: Answer) -> None:
    """Where a budget holds many prompts and a step takes as long as all of them, all end with the last: longer than M/D/1."""
    service = replace(pair.prefill.undelayed.batching, pp=1, dp=1, even_stages=None)
    load = np.array([0.6])
    several = batching.open_loop(pair.prefill.undelayed.curves, service, load).ttft_s["mean"][0]
    single = replace(service, budget_tokens=service.isl)
    assert several > batching.open_loop(pair.prefill.undelayed.curves, single, load).ttft_s["mean"][0]


def test_decode_steps_of_a_prefilled_service_carry_no_prompt(pair: Answer) -> None:
    """ITL of the decode pool is the decode step at its batch, whatever the prompts' length."""
    load = pair.decode.timed
    b = np.array([1.0, 8.0, 64.0])
    point = batching.open_loop(load.curves, load.batching, b)
    assert np.allclose(
        point.requests_per_s * load.batching.decode_steps * curves_of.decode_step_s(load.curves, load.batching, b), b
    )
    assert not point.prefill_share.any()
    assert np.allclose(point.itl_s["mean"], curves_of.decode_step_s(load.curves, load.batching, b + 1), rtol=0.02)


def test_pools_are_the_least_whole_replicas_that_carry_the_demand(pair: Answer) -> None:
    for pool in (pair.prefill, pair.decode):
        assert pool.count * pool.capacity.amount >= 20 > (pool.count - 1) * pool.capacity.amount


def test_pools_are_sized_as_published(pair: Answer) -> None:
    """GPUs = rate * prompt's seconds / utilisation of prefill; rate * OSL * ITL / (batch * utilisation) replicas of decode.

    At the utilisation that each runs at, both come back to the replicas: a full step of k prompts takes k/(R of a full
    replica) seconds, and b sequences make b/ITL tokens/s.
    """
    prefill, decode = pair.prefill, pair.decode
    prompt_s = 1 / prefill.timed.highest_per_s
    used = 20 / prefill.count * prompt_s
    assert 20 * prompt_s / used == pytest.approx(prefill.count)
    batch, itl_s = decode.point.decoding, decode.point.itl_s["mean"]
    assert 20 * 299 * itl_s / batch == pytest.approx(decode.count, rel=0.03)


def test_memory_of_prefill_replicas_holds_prompts_alone(pair: Answer) -> None:
    """Slots by cache: a prompt and its first token against prompt and output, 2,001 to 2,300 tokens in 16s: 126 to 144 blocks."""
    same = pair.decode.replica
    request = tight()
    prefill, decode = pooled.phase_questions(request, asked(), None)
    slots = [same.memory_at(of.service.isl + of.service.osl).max_concurrency for of in (prefill, decode)]
    assert slots[0] / slots[1] == pytest.approx(144 / 126)


def test_a_service_without_pools_keeps_its_numbers() -> None:
    """The flags of pools are off unless asked for."""
    service = Batching(isl=1000, osl=100, chunk_tokens=1000, budget_tokens=8192, prefill_only=False)
    assert not service.prefilled
    assert ask(real_model("llama-3.1-8b")).service.phase == "whole"


def test_the_transfer_counts_to_ttft_and_nothing_else(pair: Answer) -> None:
    slow = replace(pair.transfer, link=PoolLink("network", pair.transfer.link.bytes_per_s / 100, 0.0))
    later = pooled.delayed(pair.prefill.undelayed, slow, 2000)
    more_s = float(slow.seconds(2000))
    assert later.solo_ttft_s == pytest.approx(pair.prefill.undelayed.solo_ttft_s + more_s)
    assert later.highest_per_s == pytest.approx(pair.prefill.undelayed.highest_per_s)


def test_an_e2e_limit_is_split_between_the_pools() -> None:
    request = tight(limits={"e2e": "7s"})
    found = disaggregation.search(request.with_(pools=asked())).best
    assert found is not None
    assert found.latency_s("e2e")["mean"] <= 7.0
    loose = disaggregation.search(tight(limits={"e2e": "20s"}).with_(pools=asked())).best
    assert loose is not None and loose.gpus <= found.gpus


def test_different_gpu_types_and_given_layouts() -> None:
    sides = asked("h100-sxm", "h200-sxm", of=(PoolLayout(tp=2), PoolLayout(tp=4)))
    found = disaggregation.search(tight().with_(pools=sides)).best
    assert found is not None
    assert (found.prefill.replica.gpu_type.id, found.decode.replica.gpu_type.id) == ("h100-sxm", "h200-sxm")
    assert (found.prefill.replica.layout.tp, found.decode.replica.layout.tp) == (2, 4)
    assert found.transfer is not None and not found.transfer.link.within_node  # two types stand in two nodes
    mixed = disaggregation.search(tight().with_(pools=asked("h100-sxm", "mi300x")))
    assert mixed.best is None and mixed.pairing is not None
    assert any("no cache connector" in entry.detail for entry in mixed.pairing.refusals["prefill"])


def test_replicas_that_are_given_are_not_exceeded() -> None:
    few = asked(of=(PoolLayout(tp=4, replicas=1), PoolLayout()))
    assert disaggregation.search(tight().with_(pools=few)).best is None
    many = disaggregation.search(tight().with_(pools=asked(of=(PoolLayout(tp=4, replicas=9), PoolLayout())))).best
    assert many is not None and many.prefill.count == 9


def test_a_budget_of_gpus_serves_the_most_that_both_pools_pass(pair: Answer) -> None:
    takes = disaggregation.search(tight().with_(pools=asked(), layouts="all")).best
    assert takes is not None
    question = tight(demand=None, gpu_budget=takes.gpus).with_(pools=asked(), layouts="all")
    found = disaggregation.search(question).best
    assert found is not None and found.gpus <= takes.gpus
    assert found.prefill.requests_per_s == pytest.approx(found.decode.requests_per_s)
    assert found.requests_per_s >= takes.requests_per_s  # the demand of 20/s that as many GPUs carry


# --- both pools simulated -----------------------------------------------------------------------------------------


def test_the_closed_form_of_both_pools_is_near_the_simulation(pair: Answer) -> None:
    request = tight()
    counts = pair.prefill.count + 2, pair.decode.count
    larger = pooled.with_counts(pair, counts, pooled.phase_questions(request, asked(), None))
    run = verify.simulated(larger, request).run
    assert run is not None
    itl = run.latencies_s["itl"]["mean"]
    assert itl == pytest.approx(pair.latency_s("itl")["mean"], rel=0.05)


def test_verified_pools_keep_the_limits() -> None:
    request = tight()
    found = disaggregation.search(request.with_(pools=asked()))
    checked = verify.verify(found)
    assert checked.verified and checked.best is not None
    assert checked.best.latency_s("ttft")["p95"] <= 0.8
    assert checked.best.latency_s("itl")["mean"] <= 0.025
    assert checked.best.gpus >= found.answers[0].gpus
