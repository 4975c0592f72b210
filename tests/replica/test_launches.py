"""What holds a step up beside its kernels: launches, the host, the busiest expert rank, sums over heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import kernels_for, plan_for, real_gpu, real_model, settings_for
from engine_builders import replica_of, run_open, served, store
from hypothesis import given
from hypothesis import strategies as st

from sizing.engine.batch import DecodeBatch, Piece
from sizing.model import operations
from sizing.model.architecture import Layout, Shard
from sizing.model.operations import Operation, busiest
from sizing.replica import step
from sizing.replica.step import Batch as StepBatch
from sizing.specs.engine import EngineSettings
from sizing.specs.engine_time import HostTime


def with_host(settings: EngineSettings, **changes: float) -> EngineSettings:
    return settings.model_copy(update={"host": settings.host.model_copy(update=changes)})


def prefill(tokens: float) -> StepBatch:
    return StepBatch(
        decode_sequences=0.0,
        decode_context_tokens=0.0,
        prefill_sequences=1.0,
        prefill_tokens=tokens,
        prefill_prior_tokens=0.0,
        finishing=1.0,
    )


def step_s(tokens: float, **host: float) -> float:
    """Seconds of one prompt on Llama-3.1-8B, vLLM 0.19 on an H100; steps of up to 512 tokens are captured."""
    model, gpu = real_model("llama-3.1-8b"), real_gpu("h100-sxm")
    kernels = kernels_for(model, gpu)
    settings = with_host(kernels.settings, per_step_us=0.0, per_sequence_us=0.0, **host)
    kernels = replace(kernels, shard=replace(kernels.shard, settings=settings))
    return step.step(kernels, prefill(tokens)).total_s


def test_launches_bound_a_step_that_no_graph_holds() -> None:
    """32 layers of 9 operations (2 norms, 4 products, rotary embedding, attention, activation), and
    embedding, norm, head and sampling, at 100 us each, longer than 513 tokens take to compute; 512 run as a graph."""
    assert step_s(513, eager_launch_us=100) == pytest.approx((32 * 9 + 4) * 100e-6)
    assert step_s(512, eager_launch_us=100) == step_s(512, eager_launch_us=0) < 0.02
    assert step_s(8192, eager_launch_us=100) == step_s(8192, eager_launch_us=0) > 0.1


@pytest.mark.parametrize("sequences", [1.0, 256.0])
@pytest.mark.parametrize(
    "engine", ["vllm:0.5.5", "vllm:0.6.4", "vllm:0.9.2", "vllm:0.20.0", "sglang:0.4.0", "sglang:0.5.9", "tensorrt-llm:0.12.0", "tensorrt-llm:1.1.0"]
)  # fmt: skip
def test_steps_without_graphs_are_not_faster(engine: str, sequences: float) -> None:
    model = real_model("llama-3.1-8b")
    kernels = kernels_for(model, real_gpu("h100-sxm"), engine=engine)
    without = replace(kernels, shard=replace(kernels.shard, settings=kernels.settings.eager(len(model.layers))))
    decoding = StepBatch(decode_sequences=sequences, decode_context_tokens=1000.0)
    captured_s, eager_s = (step.step(of, decoding).total_s for of in (kernels, without))
    assert eager_s >= captured_s
    assert engine.startswith("tensorrt-llm:0") or sequences > 1 or eager_s > captured_s


def test_the_simulator_s_clock_bounds_them_alike() -> None:
    of = served("llama-3.1-70b", "sglang:0.5.9", tp=4)
    launching_s = step.launch_s(of.kernels)
    each_us = of.kernels.settings.host.eager_launch_us
    assert launching_s == pytest.approx(
        (80 * 11 + 6) * each_us * 1e-6
    )  # two all-reduces a layer, and of embedding and logits
    taken_s, _ = of.clock.step([Piece(0, 16.0, 0.0)], DecodeBatch(), False)
    assert taken_s == pytest.approx(launching_s)
    assert of.clock.step([Piece(0, 16_000.0, 0.0)], DecodeBatch(), False)[0] > launching_s


def test_small_sums_that_norm_too_take_the_time_of_the_library_they_are_of() -> None:
    """Up to 512 KiB over eight H100, as TensorRT-LLM's own; beyond, and before vLLM 0.14, as vLLM's."""

    def sum_s(engine: str, kib: float, rule: str = "all_reduce") -> float:
        message = Operation("sum", rule, 1, message_bytes=kib * 1024, gpus=8)
        return float(kernels_for(real_model("llama-3.1-8b"), real_gpu("h100-sxm"), engine=engine).seconds(message))

    for kib in (8, 512):
        assert sum_s("vllm:0.19.0", kib) == sum_s("tensorrt-llm:1.1", kib) != sum_s("vllm:0.12.0", kib)
    assert sum_s("vllm:0.19.0", 513) == sum_s("vllm:0.12.0", 513) != sum_s("tensorrt-llm:1.1", 513)
    assert sum_s("vllm:0.19.0", 8, "all_gather") == sum_s("vllm:0.12.0", 8, "all_gather")


def test_few_tokens_are_summed_in_one_step_where_the_engine_counts_tokens() -> None:
    """128 tokens of 8,192 values are 2 MiB: 1.5 MiB beyond the measured 0.5 go to 7 GPUs at 270 GB/s, 41 us more on H200."""

    def sum_s(engine: str, tokens: float) -> float:
        message = Operation("sum", "all_reduce", 1, message_bytes=tokens * 16384, gpus=8, rows=tokens)
        return float(kernels_for(real_model("llama-3.1-70b"), real_gpu("h200-sxm"), engine=engine).seconds(message))

    new = "tensorrt-llm:1.1"
    assert sum_s(new, 128) - sum_s(new, 32) == pytest.approx(7 * 1.5 * 2**20 / 270e9)
    assert sum_s(new, 128) > sum_s(new, 129) > sum_s(new, 32)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_collectives_over_the_same_link_take_as_long_and_over_a_slower_one_longer(engine: str) -> None:
    """A100s of 40 and 80 GB have one link; that of A800 has 200 GB/s of 300: 3/2 of a large message's time over it."""

    def sum_s(gpu: str, kib: float) -> float:
        message = Operation("sum", "all_reduce", 1, message_bytes=kib * 1024, gpus=8)
        return float(kernels_for(real_model("llama-3.1-8b"), real_gpu(gpu), engine=engine).seconds(message))

    for kib in (4, 64, 1024, 65536):
        small, large, cut = (sum_s(gpu, kib) for gpu in ("a100-sxm-40gb", "a100-sxm-80gb", "a800-sxm-80gb"))
        assert small == large < cut
    assert cut / large == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "b300"])
def test_few_bytes_among_eight_gpus_take_microseconds(gpu: str) -> None:
    """A single disturbed measurement of few bytes counts for no larger message: 16 KiB take up to 9 us everywhere."""
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        message = Operation("sum", "all_reduce", 1, message_bytes=16 * 1024, gpus=8)
        kernels = kernels_for(real_model("llama-3.1-8b"), real_gpu(gpu), engine=engine)
        assert kernels.seconds(message) < 9e-6


def test_a_shared_expert_beside_the_routed_ones_takes_what_it_moves() -> None:
    """SGLang on Hopper up to 1,024 tokens; on Blackwell, and of more tokens, it takes its turn."""
    model = real_model("deepseek-v3")

    def shared_s(gpu: str, tokens: float) -> tuple[float, float]:
        by = kernels_for(model, real_gpu(gpu), Layout(tp=8), engine="sglang:0.5.9")
        found = [one for one in operations.split_body(by.shard, tokens) if one.name.startswith("shared_expert")]
        assert len(found) == 4  # two products, the activation, the sum with what is routed
        return sum(float(by.seconds(one)) for one in found), sum(float(one.bytes) for one in found) / 4.8e12

    beside_s, moved_s = shared_s("h200-sxm", 1024.0)
    assert beside_s == pytest.approx(moved_s)
    assert shared_s("h200-sxm", 1025.0)[0] > 2 * beside_s
    assert shared_s("b200", 16.0)[0] > 5 * shared_s("b200", 16.0)[1]


def test_tokens_sent_back_by_the_loop_slow_servers_and_no_batch() -> None:
    host = HostTime(per_step_us=100, per_sequence_us=2, per_streamed_token_us=30, overlapped=False)
    assert step.host_s(host, 10.0) == pytest.approx(100e-6 + 10 * 32e-6)
    settings = settings_for(real_model("llama-3.1-8b"), real_gpu("h100-sxm"), Layout(), "tensorrt-llm:0.10.0")
    assert settings.host.per_streamed_token_us > 0
    alone = settings.in_process()
    assert alone.host.sequence_us == settings.host.per_sequence_us
    assert (alone.front_end.per_request_ms, alone.front_end.per_prompt_token_us) == (0, 0)
    assert alone.model_copy(update={"host": settings.host, "front_end": settings.front_end}) == settings


def test_norms_over_all_heads_sum_up_over_the_ranks() -> None:
    """MiniMax-M2.5: two kernels and, with TP, one sum of 8 bytes a token more in each of 62 layers."""
    model, gpu = real_model("minimax-m2.5"), real_gpu("h200-sxm")
    for tp in (1, 4):
        layout = Layout(tp=tp)
        settings = settings_for(model, gpu, layout)
        plan = plan_for(model, gpu, settings)
        found = {o.name: o for o in operations.split_body(Shard(model, layout, settings, plan), 100.0)}
        assert found["qk_norm"].count == 2 * 62
        assert ("qk_norm_all_reduce" in found) == (tp > 1)
    assert found["qk_norm_all_reduce"].count == 62
    assert found["qk_norm_all_reduce"].message_bytes == 800
    plain = real_model("llama-3.1-8b")
    settings = settings_for(plain, gpu, Layout(tp=4))
    plan = plan_for(plain, gpu, settings)
    assert "qk_norm" not in {o.name for o in operations.split_body(Shard(plain, Layout(tp=4), settings, plan), 100.0)}


@given(mean=st.floats(1e-3, 1e6), ranks=st.integers(1, 256))
def test_the_busiest_rank_has_its_share_at_least_and_all_at_most(mean: float, ranks: int) -> None:
    found = float(busiest(mean, ranks))
    assert mean <= found <= mean * ranks
    assert float(busiest(mean * 2, ranks)) / (mean * 2) <= found / mean * (1 + 1e-12)  # more loads even out
    assert float(busiest(mean, ranks + 1)) >= found


def test_the_busiest_of_eight_ranks_is_what_draws_show() -> None:
    """64 draws on 8 ranks, 8 each: the fullest has about 12.2 (m + sqrt(2 m ln n) = 13.8, an upper estimate)."""
    rng = np.random.default_rng(3)
    fullest = np.mean([np.bincount(rng.integers(0, 8, 64), minlength=8).max() for _ in range(4000)])
    assert fullest < float(busiest(8.0, 8)) < 1.15 * fullest


def test_one_expert_rank_has_all_its_pairs() -> None:
    model, gpu = real_model("gpt-oss-120b"), real_gpu("h100-sxm")
    work = {}
    for ep in (1, 8):
        layout = Layout(tp=8, ep=ep)
        settings = settings_for(model, gpu, layout)
        plan = plan_for(model, gpu, settings)
        found = [o for o in operations.split_body(Shard(model, layout, settings, plan), 1e6) if o.name == "experts"]
        work[ep] = sum(float(o.flops) * o.count for o in found)
    # With many tokens the ranks are even, and an expert whole on one of 8 ranks is as much as an eighth of each.
    assert work[8] == pytest.approx(work[1], rel=0.01)


def test_a_prompt_in_flight_is_not_slowed_by_what_it_waits_for_outside() -> None:
    """A lone request: TTFT is one step and the front end."""
    of = served("llama-3.1-8b", "vllm:0.19.0")
    requests = store([0.0], [4096], [2])
    run_open(replica_of(of, requests))
    step_alone_s, _ = of.clock.step([Piece(0, 4096.0, 0.0)], DecodeBatch(), False)
    assert requests.first_token[0] == pytest.approx(of.clock.serial + step_alone_s + of.clock.outside(4096))


def test_small_kernels_of_recurrent_layers_by_hand() -> None:
    """Qwen3-Next: 36 layers with 16 key and 32 value heads of 128, so a convolution over 2 * 2,048 + 4,096 = 8,192 values.

    A token of TP2 at 16 bit: convolution 2 * 4,096 * 2 B, decay and update of 16 heads 2 * 2 * 16 * 2 B, gated norm
    3 * 2,048 * 2 B. The 12 other layers gate 16 heads of 256: 3 * 2,048 * 2 B.
    """
    model, gpu, layout = real_model("qwen3-next-80b-a3b"), real_gpu("h100-sxm"), Layout(tp=2)
    settings = settings_for(model, gpu, layout)
    plan = plan_for(model, gpu, settings)
    found = {o.name: o for o in operations.split_body(Shard(model, layout, settings, plan), 10.0)}
    for name, count, of_token in (
        ("short_conv", 36, 16_384),
        ("gates", 36, 128),
        ("gated_norm", 36, 12_288),
        ("output_gate", 12, 12_288),
    ):
        assert (found[name].count, found[name].bytes) == (count, 10 * of_token), name
    plain = real_model("llama-3.1-8b")
    settings = settings_for(plain, gpu, layout)
    names = {
        o.name for o in operations.split_body(Shard(plain, layout, settings, plan_for(plain, gpu, settings)), 10.0)
    }
    assert not names & {"short_conv", "gates", "gated_norm", "output_gate"}


@pytest.mark.parametrize(
    ("version", "grouped", "grouped_8bit", "alone"),
    [("0.6", True, True, True), ("0.9", False, False, True), ("0.10", True, False, True), ("0.13", True, False, False)],
)
def test_tensor_cores_came_to_decode_attention_by_groups_and_caches(
    version: str, grouped: bool, grouped_8bit: bool, alone: bool
) -> None:
    """TensorRT-LLM before 0.15: heads of groups of 8, with a cache in 16 and in 8 bit, and ungrouped ones on the general cores."""
    settings = settings_for(
        real_model("llama-3.1-70b"), real_gpu("h100-sxm"), Layout(tp=4), f"tensorrt-llm:{version}.0"
    )
    vector = settings.vector_attention
    assert vector is not None
    found = tuple(vector.holds(*heads) for heads in ((8, "fp16"), (8, "fp8"), (1, "fp16")))
    assert found == (grouped, grouped_8bit, alone)
