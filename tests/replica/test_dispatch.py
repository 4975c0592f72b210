"""Tokens on their way to their experts and back: against DeepEP's published and measured times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import kernels_for, option, real_gpu, real_model

from sizing.model.architecture import Layout
from sizing.model.operations import Operation
from sizing.replica.replica import resolve_settings

H100 = real_gpu("h100-sxm")
DEEPSEEK = real_model("deepseek-v3")
HIDDEN = 7168


def us(way: str, gpus: int, tokens: int, value_bytes: int) -> float:
    kernels = kernels_for(DEEPSEEK, H100, Layout(dp=gpus, ep=gpus))
    operation = Operation(
        "experts_dispatch", way, 1, message_bytes=float(tokens * HIDDEN * value_bytes), gpus=gpus, fan_out=8
    )
    return float(kernels.seconds(operation)) * 1e6


# DeepEP's README on H800 with 400 Gbit/s a GPU: dispatch of 128 tokens in 8 bit, combine in 16 bit.
PUBLISHED = {16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369)}


@pytest.mark.parametrize("gpus", PUBLISHED)
def test_few_tokens_take_what_deepep_published(gpus: int) -> None:
    for value_bytes, published in zip((1, 2), PUBLISHED[gpus], strict=True):
        assert us("low_latency", gpus, 128, value_bytes) == pytest.approx(published, rel=0.15)


# aiconfigurator's table of DeepEP's normal mode on H100, 24 SMs, 4,096 tokens in 8 and 16 bit, notify included.
MEASURED = {8: (498, 961), 16: (805, 1827), 32: (1853, 3641)}


@pytest.mark.parametrize("gpus", MEASURED)
def test_many_tokens_take_what_was_measured(gpus: int) -> None:
    for value_bytes, measured in zip((1, 2), MEASURED[gpus], strict=True):
        assert us("high_throughput", gpus, 4096, value_bytes) == pytest.approx(measured, rel=0.25)


def test_a_step_with_too_many_tokens_for_the_direct_way_takes_the_other() -> None:
    few, many = 16, 16384
    assert us("low_latency", 32, few, 2) < us("high_throughput", 32, few, 2)
    assert us("low_latency", 32, many, 2) == pytest.approx(us("high_throughput", 32, many, 2))


def test_experts_over_nodes_are_reached_directly_and_within_a_node_by_a_gather() -> None:
    from builders import ask

    request = ask(DEEPSEEK, engine="sglang", isl=1000, osl=100)
    backends = {
        gpus: resolve_settings(request.service, H100, Layout(dp=gpus, ep=gpus)).all2all_backend for gpus in (8, 16)
    }
    assert backends == {8: "allgather", 16: "low_latency"}
    asked = replace(
        request.service, serving=request.service.serving.model_copy(update={"all2all_backend": "allgather"})
    )
    assert resolve_settings(asked, H100, Layout(dp=16, ep=16)).all2all_backend == "allgather"
    assert option("h100-sxm").gpu == H100
