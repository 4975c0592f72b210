"""Separate pools for prefill and decode: the transfer of the cache, DistServe's queue, laws of both simulated pools, the answer
beside serving as one.
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import ask, data, kernels_for, option, real_gpu, real_model

from sizing.answers import pools as disaggregation
from sizing.answers import pools as pooled
from sizing.answers import verify
from sizing.answers.answer import Answer
from sizing.answers.sizes import RULES
from sizing.catalog import shelf
from sizing.cli.main import run
from sizing.cli.options import with_values
from sizing.engine import transfer
from sizing.engine.deployment import Deployment
from sizing.engine.requests import Lengths
from sizing.engine.rules import of_engine
from sizing.engine.simulation import Run, Traffic, simulate
from sizing.engine.transfer import PoolLink, Transfer
from sizing.model import memory
from sizing.model.architecture import Layout
from sizing.question.question import PoolSpace, SeparatePools
from sizing.replica import batching, links
from sizing.replica import curves as curves_of
from sizing.replica.points import Batching
from sizing.specs.optimisations import Disaggregate, HandOver, PoolLayout
from sizing.specs.workload import Serving, Workload

NO_TIME = PoolLink("none", math.inf, 0.0)
INSTANT = Transfer(131_072.0, 0.0, NO_TIME)
BASE = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "2000", "--osl", "300"]


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


def deployed(replicas: int = 1, tp: int = 1) -> Deployment:
    """llama-3.1-8b on one H100 under vLLM 0.19."""
    model, gpu, layout = real_model("llama-3.1-8b"), real_gpu("h100-sxm"), Layout(tp=tp)
    kernels = kernels_for(model, gpu, layout)
    used = memory.use(kernels.shard, gpu, 8192)
    return Deployment(kernels, used, of_engine(kernels.settings), replicas)


def traffic(count: int, rate: float, isl: int = 2000, osl: int = 300, **changes: Any) -> Traffic:
    return Traffic(Lengths(isl), Lengths(osl), count, rate_per_s=rate, **changes)


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
    found = disaggregation.search(tight().with_(pools=asked()), data())
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
    load = pair.decode.load
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
    prompt_s = 1 / prefill.load.highest_per_s
    used = 20 / prefill.count * prompt_s
    assert 20 * prompt_s / used == pytest.approx(prefill.count)
    batch, itl_s = decode.point.decoding, decode.point.itl_s["mean"]
    assert 20 * 299 * itl_s / batch == pytest.approx(decode.count, rel=0.03)


def test_memory_of_prefill_replicas_holds_prompts_alone(pair: Answer) -> None:
    """Slots by cache: a prompt and its first token against prompt and output, 2,001 to 2,300 tokens in 16s: 126 to 144 blocks."""
    same = pair.decode.replica
    request = tight()
    prefill, decode = pooled.phase_requests(request, asked(), None)
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
    found = disaggregation.search(request.with_(pools=asked()), data()).best
    assert found is not None
    assert found.latency_s("e2e")["mean"] <= 7.0
    loose = disaggregation.search(tight(limits={"e2e": "20s"}).with_(pools=asked()), data()).best
    assert loose is not None and loose.gpus <= found.gpus


def test_different_gpu_types_and_given_layouts() -> None:
    sides = asked("h100-sxm", "h200-sxm", of=(PoolLayout(tp=2), PoolLayout(tp=4)))
    found = disaggregation.search(tight().with_(pools=sides), data()).best
    assert found is not None
    assert (found.prefill.replica.gpu_type.id, found.decode.replica.gpu_type.id) == ("h100-sxm", "h200-sxm")
    assert (found.prefill.replica.layout.tp, found.decode.replica.layout.tp) == (2, 4)
    assert found.transfer is not None and not found.transfer.link.within_node  # two types stand in two nodes
    mixed = disaggregation.search(tight().with_(pools=asked("h100-sxm", "mi300x")), data())
    assert mixed.best is None and mixed.pairing is not None
    assert any("no cache connector" in entry.detail for entry in mixed.pairing.refusals["prefill"])


def test_replicas_that_are_given_are_not_exceeded() -> None:
    few = asked(of=(PoolLayout(tp=4, replicas=1), PoolLayout()))
    assert disaggregation.search(tight().with_(pools=few), data()).best is None
    many = disaggregation.search(
        tight().with_(pools=asked(of=(PoolLayout(tp=4, replicas=9), PoolLayout()))), data()
    ).best
    assert many is not None and many.prefill.count == 9


def test_a_budget_of_gpus_serves_the_most_that_both_pools_pass(pair: Answer) -> None:
    takes = disaggregation.search(tight().with_(pools=asked(), layouts="all"), data()).best
    assert takes is not None
    question = tight(demand=None, gpu_budget=takes.gpus).with_(pools=asked(), layouts="all")
    found = disaggregation.search(question, data()).best
    assert found is not None and found.gpus <= takes.gpus
    assert found.prefill.requests_per_s == pytest.approx(found.decode.requests_per_s)
    assert found.requests_per_s >= takes.requests_per_s  # the demand of 20/s that as many GPUs carry


# --- both pools simulated -----------------------------------------------------------------------------------------


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


def test_the_closed_form_of_both_pools_is_near_the_simulation(pair: Answer) -> None:
    request = tight()
    counts = pair.prefill.count + 2, pair.decode.count
    larger = pooled.with_counts(pair, counts, pooled.phase_requests(request, asked(), None), data())
    run = verify.simulated(larger, request).run
    assert run is not None
    itl = run.latencies_s["itl"]["mean"]
    assert itl == pytest.approx(pair.latency_s("itl")["mean"], rel=0.05)


def test_verified_pools_keep_the_limits() -> None:
    request = tight()
    found = disaggregation.search(request.with_(pools=asked()), data())
    checked = verify.verify(found, data())
    assert checked.verified and checked.best is not None
    assert checked.best.latency_s("ttft")["p95"] <= 0.8
    assert checked.best.latency_s("itl")["mean"] <= 0.025
    assert checked.best.gpus >= found.answers[0].gpus


def test_large_pools_are_simulated_in_part_at_no_less_load() -> None:
    assert verify.part_of(4, 2) == (2, 1, 0.5)
    prefills, decodes, share = verify.part_of(70, 31)
    assert prefills + decodes <= RULES.most_replicas
    assert share / prefills >= 1 / 70 and share / decodes >= 1 / 31


# --- as asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", Disaggregate()),
        ("prefill=h100-sxm:tp2,decode=h200-sxm:tp4", Disaggregate(prefill=PoolLayout(gpu="h100-sxm", tp=2), decode=PoolLayout(gpu="h200-sxm", tp=4))),
        ("decode=3xtp4pp2", Disaggregate(decode=PoolLayout(replicas=3, tp=4, pp=2))),
        ("prefill=2xl40s", Disaggregate(prefill=PoolLayout(replicas=2, gpu="l40s"))),
        ("prefill=./my.yaml:tp2", Disaggregate(prefill=PoolLayout(gpu="./my.yaml", tp=2))),
    ],
)  # fmt: skip
def test_pools_are_read(text: str, expected: Disaggregate) -> None:
    workload = Workload.model_validate(
        {"model": "x", "tokens": {"isl": 1, "osl": 2}, "optimisations": {"disaggregate": text}}
    )
    assert workload.optimisations.disaggregate == expected


def test_an_option_without_a_value_leaves_the_pools_to_the_search() -> None:
    assert with_values(["estimate", "--disaggregate", "rag.yaml"]) == ["estimate", "--disaggregate", "auto", "rag.yaml"]
    assert with_values(["estimate", "--disaggregate"]) == ["estimate", "--disaggregate", "auto"]
    assert with_values(["--disaggregate", "prefill=tp2"]) == ["--disaggregate", "prefill=tp2"]
    assert with_values(["--disaggregate=auto"]) == ["--disaggregate=auto"]
    assert with_values(["estimate", "--disaggregate", "chat"]) == ["estimate", "--disaggregate", "auto", "chat"]


def test_a_word_that_is_no_workload_is_meant_as_the_pools_where_the_work_is_stated() -> None:
    for said in (["chat", "--disaggregate", "nonsense"], ["-m", "llama-3.1-8b", "--disaggregate", "nonsense"]):
        assert with_values(["estimate", *said]) == ["estimate", *said]
    assert with_values(["estimate", "chat", "--disaggregate", ""]) == ["estimate", "chat", "--disaggregate", ""]
    assert with_values(["estimate", "--disaggregate", "chatt"]) == ["estimate", "--disaggregate", "auto", "chatt"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_estimate_says_which_serves_with_fewer_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    tight = ["estimate", "-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "2000", "--osl", "300", "--rps", "20",
             "--ttft", "p95:800ms", "--itl", "25ms"]  # fmt: skip
    code, document = answer(capsys, *tight, "--disaggregate")
    found = document["disaggregated"]
    assert code == 0
    assert found["beats_aggregated"] and found["gpus"] < found["aggregated"]["gpus"] == document["deployment"]["gpus"]
    assert found["gpus"] == found["prefill"]["gpus"] + found["decode"]["gpus"]
    assert found["ratio"] == pytest.approx(found["prefill"]["gpus"] / found["decode"]["gpus"])
    assert "ITL" in found["why"]
    code, plain = answer(capsys, *tight)
    assert plain["disaggregated"] is None
    shared = ("deployment", "latency", "load", "memory", "cost", "throughput")
    assert {key: plain[key] for key in shared} == {key: document[key] for key in shared}


def test_the_pools_command_of_an_answer_keeps_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--ttft", "p95:400ms", "--itl", "12ms"]
    _, document = answer(capsys, "estimate", *BASE, "--rps", "30", *limits, "--disaggregate")
    found = document["disaggregated"]
    code, simulated = answer(capsys, *shlex.split(found["simulate_command"])[1:])
    assert code == 0
    assert simulated["inputs"]["gpus"] == found["gpus"]
    assert simulated["disaggregated"]["kv_transfer"]["within_node"] == found["kv_transfer"]["within_node"]
    assert simulated["itl_ms"]["mean"] == pytest.approx(found["itl_ms"]["mean"], rel=0.03)


@pytest.mark.parametrize(
    "optimised",
    [
        ["--prefix-hit", "0.5", "--prefix-shared", "512", "--prefix-distinct", "3"],
        ["--kv-offload", "0.5@40"],
        ["--speculative", "ngram:4@0.6"],
        ["--lora", "4x16"],
        ["--sparsity", "2:4"],
        ["--images", "2x512x512"],
    ],
    ids=lambda options: options[0],
)
def test_the_pools_command_keeps_the_optimisations(optimised: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run as printed it serves the same load on the same pools, with the same options, and comes to the same verdict.

    TTFT and ITL are within the chance of two simulations: without the option they are off by more than a tenth.
    """
    limits = ["--ttft", "p95:400ms", "--itl", "15ms"]
    _, document = answer(capsys, "estimate", *BASE, "--rps", "15", *limits, *optimised, "--disaggregate")
    found = document["disaggregated"]
    words = shlex.split(found["simulate_command"])[1:]
    assert all(words[words.index(name) + 1] == value for name, value in zip(*[iter(optimised)] * 2, strict=True))
    code, simulated = answer(capsys, *words)
    assert code == 0 and found["feasible"]
    assert simulated["inputs"]["gpus"] == found["gpus"]
    assert simulated["inputs"]["isl"] == document["inputs"]["isl"]
    assert simulated["disaggregated"]["kv_transfer"] == found["kv_transfer"]
    assert simulated["itl_ms"]["mean"] == pytest.approx(found["itl_ms"]["mean"], rel=0.03)
    assert simulated["ttft_ms"]["mean"] == pytest.approx(found["ttft_ms"]["mean"], rel=0.1)


@pytest.mark.parametrize(
    "optimised", [["--prefix-hit", "0.9"], ["--kv-offload", "0.5"]], ids=lambda options: options[0]
)
def test_the_whole_prompts_cache_moves_whatever_was_not_computed(
    optimised: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama-2-7B: 32 layers * 32 heads * 128 * 2 * 2 B = 524,288 B a token * 3,800 = 1.992 GB; PCIe 4 at 0.6 * 32 = 19.2 GB/s:
    103.8 ms, as the simulator takes where prompts are too few to wait for each other on the link.
    """
    work = ["-m", "llama-2-7b", "-g", "l40s", "--isl", "3800", "--osl", "200", "--rps", "0.05", *optimised]
    pools = ["--disaggregate", "prefill=1xtp1,decode=1xtp1"]
    _, document = answer(capsys, "estimate", *work, *pools, "--no-verify")
    found = document["disaggregated"]
    _, simulated = answer(capsys, "simulate", *work, *pools, "--requests", "50", "--arrivals", "even")
    assert found["kv_transfer"]["gb_per_gpu"] == pytest.approx(1.9923, rel=1e-4)
    assert found["kv_transfer_ms"] == pytest.approx(103.78, rel=1e-3)
    assert simulated["disaggregated"]["kv_transfer_ms"] == pytest.approx(found["kv_transfer_ms"], rel=1e-3)
    assert simulated["ttft_ms"]["mean"] == pytest.approx(found["ttft_ms"]["mean"], rel=0.03)


@pytest.mark.parametrize(
    ("pools", "limits", "said"),
    [
        ("prefill=mi300x:tp2,decode=h100-sxm:tp4", [], ("MI300X", "no cache connector joins GPUs of AMD and NVIDIA")),
        ("prefill=1xtp1pp2,decode=1xtp4", [], ("prefill: 1 x", "ended by TTFT", "nearest: 3 prefill replicas")),
        ("auto", ["--e2e", "1.5s"], ("decode: ", "E2E of a request that is alone", "(of 1.50 s for both pools)")),
        ("auto", ["--e2e", "20ms"], ("prefill: ", "E2E of a request that is alone", "the limit 20.0 ms")),
    ],
)
def test_pools_that_cannot_serve_say_the_true_reason(
    pools: str, limits: list[str], said: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = answer(capsys, "estimate", "chat", "-g", "h100-sxm", *limits, "--disaggregate", pools)
    found = document["disaggregated"]
    assert code == 1 and not found["feasible"]
    assert all(words in found["why"] for words in said), found["why"]


def test_the_nearest_change_of_too_few_replicas_is_one_that_serves(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["estimate", "chat", "-g", "h100-sxm", "--disaggregate"]
    assert run([*few, "prefill=2xtp1pp2,decode=1xtp4", "--json"]) == 1
    assert "nearest: 3 prefill replicas" in capsys.readouterr().out
    assert run([*few, "prefill=3xtp1pp2,decode=1xtp4", "--json"]) == 0


def test_a_budget_that_holds_no_pair_is_named_with_the_one_that_does(capsys: pytest.CaptureFixture[str]) -> None:
    """3 x TP2 and 2 x TP4 are 14 GPUs."""
    work = ["-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "2000", "--osl", "300"]
    pools = ["--disaggregate", "prefill=3xtp2,decode=2xtp4", "--no-verify"]
    _, document = answer(capsys, "estimate", *work, "--gpus", "8", *pools)
    why = document["disaggregated"]["why"]
    assert "take 14 GPUs, the budget is 8; nearest: --gpus 14" in why
    code, document = answer(capsys, "estimate", *work, "--gpus", "14", *pools)
    assert code == 0 and document["disaggregated"]["gpus"] == 14


def test_estimate_says_where_serving_as_one_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = answer(capsys, "estimate", *BASE, "--rps", "2", "--disaggregate")
    found = document["disaggregated"]
    assert code == 0
    assert (found["gpus"], found["aggregated"]["gpus"], found["beats_aggregated"]) == (2, 1, False)
    assert "whole replicas" in found["why"]
    assert run(["estimate", *BASE, "--rps", "2", "--disaggregate", "-q"]) == 0
    assert capsys.readouterr().out == "2\n"


def test_pools_that_no_layout_meets_are_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = answer(capsys, "estimate", *BASE, "--rps", "2", "--ttft", "5ms", "--disaggregate")
    assert code == 1
    assert not document["disaggregated"]["feasible"]
    assert document["disaggregated"]["why"].startswith("prefill: ")


def test_simulate_runs_given_pools(capsys: pytest.CaptureFixture[str]) -> None:
    pools = "prefill=2xtp1,decode=tp2"
    code, document = answer(capsys, "simulate", *BASE, "--rps", "20", "--requests", "500", "--disaggregate", pools)
    assert code == 0
    assert document["inputs"]["gpus"] == 4
    assert document["requests_per_s_per_gpu"] == pytest.approx(document["requests_per_s"] / 4)
    assert document["disaggregated"]["prefill"]["replicas"] == 2
    assert document["disaggregated"]["decode"]["tp"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["estimate", *BASE, "--concurrency", "9", "--disaggregate"], "sized by a rate"),
        (["estimate", *BASE, "--osl", "1", "--rps", "9", "--disaggregate"], "nothing decodes"),
        (["estimate", *BASE, "--rps", "9", "--disaggregate", "decode=tp2tp4"], "twice"),
        (["estimate", *BASE, "--rps", "9", "--disaggregate", "serve=tp2"], "names no pool"),
        (["estimate", "chat", "--disaggregate", "nonsense"], "the form is auto, or prefill=POOL,decode=POOL"),
        (["estimate", "chat", "--disaggregate", ""], "the form is auto, or prefill=POOL,decode=POOL"),
        (["simulate", "chat", "-g", "h100-sxm", "--disaggregate", "nonsense"], "the form is auto, or prefill=POOL,decode=POOL"),
        (["estimate", *BASE, "--rps", "9", "--disaggregate", "prefill=h999"], "unknown GPU 'h999'"),
        (["simulate", *BASE, "--concurrency", "9", "--disaggregate"], "closed loop"),
        (["simulate", *BASE, "--rps", "9", "--replicas", "2", "--disaggregate"], "--replicas"),
        (["simulate", *BASE, "--rps", "9", "--disaggregate", "prefill=mi300x"], "no cache connector"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("prefil=tp2", "did you mean prefill?"),
        ("prefill=tp2,prefill=tp3", "prefill is named twice"),
        ("prefill=0xtp2", "'0xtp2' counts 0 replicas, from 1 to 4,096"),
        ("prefill=tp9999,decode=tp1", "'tp9999' has tp 9999, from 1 to 1,024"),
        ("prefill=,decode=tp1", "prefill has no pool"),
    ],
)
def test_a_pool_that_cannot_be_read_says_which(asked: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "600", "--osl", "250", "--rps", "2"]
    assert run([*arguments, "--disaggregate", asked]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("llmsize: --disaggregate: ")
    assert words in line


def test_one_turn_over_pools_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "2000", "--osl", "200", "--rps", "8"]
    asked = [*asked, "--disaggregate", "--no-verify", "--json"]
    gpus = []
    for turns in ([], ["--turns", "1", "--think-time", "30s"]):
        assert run([*asked, *turns]) == 0
        gpus.append(json.loads(capsys.readouterr().out)["disaggregated"]["gpus"])
    assert gpus[0] == gpus[1]


def test_a_pool_with_a_layout_takes_none_of_the_others_sizes() -> None:
    """Its own TP4 is not TP4 CP2 because those that serve as one are."""
    pool = PoolSpace((), PoolLayout(tp=4)).serving(Serving(tp=8, cp=2))
    assert (pool.tp, pool.cp) == (4, None)
    assert PoolSpace((), PoolLayout()).serving(Serving(tp=8, cp=2)).cp == 2
