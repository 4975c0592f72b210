"""Context parallelism: prompts and caches cut by tokens, over GPUs of their own or over those that hold the same cache."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import ask, kernels_for, memory_of, option, real_gpu, real_model, settings_for

from sizing.answers import search
from sizing.cli.main import run
from sizing.model import architecture, operations
from sizing.model.architecture import Layout
from sizing.replica.replica import Replica, candidates
from sizing.replica.step import Batch, Step, step

ENGINE = "vllm:0.33.0"
H100 = "h100-sxm"
GATHERED = ("cp_keys", "cp_queries", "cp_sums", "cp_outputs", "dcp_keys", "dcp_queries", "dcp_sums", "dcp_outputs")


def timed(name: str, layout: Layout, batch: Batch, *, gpu: str = H100, precision: str | None = None) -> Step:
    """One exact step."""
    model = real_model(name)
    kernels = kernels_for(model, real_gpu(gpu), layout, engine=ENGINE, precision_name=precision)
    return step(kernels, batch)


def flops(found: Step) -> float:
    """FLOPs of one GPU."""
    return sum(float(o.operation.flops) * o.operation.count for o in found.operations)


def prompt(tokens: int, prior: int = 0) -> Batch:
    return Batch(prefill_sequences=1.0, prefill_tokens=float(tokens), prefill_prior_tokens=float(prior), finishing=1.0)


def decoding(sequences: int, context: int) -> Batch:
    return Batch(decode_sequences=float(sequences), decode_context_tokens=float(context))


def refusal(name: str, layout: Layout) -> str | None:
    model = real_model(name)
    return architecture.why_not(model, layout, settings_for(model, real_gpu(H100), layout, ENGINE))


# --- sizes --------------------------------------------------------------------------------------------------------


def test_context_parallelism_takes_gpus_and_decode_context_parallelism_takes_none() -> None:
    layout = Layout(tp=4, pp=2, dp=2, cp=2, dcp=4)
    assert layout.gpus == 4 * 2 * 2 * 2
    assert layout.stage_gpus == 16
    assert layout.token_ranks == 4
    assert layout.cache_parts == 8
    assert str(layout) == "TP4 PP2 DP2 CP2 DCP4"
    assert str(Layout(tp=2)) == "TP2"


@pytest.mark.parametrize(
    ("name", "tp", "copies"),
    [
        ("llama-3.1-70b", 8, 1),  # 8 KV heads, one a GPU
        ("llama-3.1-70b", 16, 2),
        ("qwen2.5-7b", 4, 1),  # 4 KV heads
        ("qwen2.5-7b", 1, 1),
        ("deepseek-v3", 8, 8),  # one latent for all heads
    ],
)
def test_copies_of_a_cache(name: str, tp: int, copies: int) -> None:
    model = real_model(name)
    assert {architecture.cache_copies(kind, tp) for kind in model.kinds} == {copies}


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("llama-3.1-70b", Layout(tp=8, dcp=2), "at TP8 no two GPUs hold the same cache"),
        ("llama-3.1-70b", Layout(tp=16, dcp=4), "at TP16 2 GPUs hold the same cache"),
        ("deepseek-v3", Layout(tp=8, dcp=3), "at TP8 8 GPUs hold the same cache"),
        ("gpt-oss-120b", Layout(tp=16, dcp=2), "the model has sliding windows"),
        ("qwen3.5-35b-a3b", Layout(tp=1, cp=2), "a recurrent state is of a whole sequence"),
    ],
)
def test_what_cannot_be_cut(name: str, layout: Layout, words: str) -> None:
    found = refusal(name, layout)
    assert found is not None
    assert words in found


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama-3.1-70b", Layout(tp=16, dcp=2)),
        ("deepseek-v3", Layout(tp=8, ep=8, dcp=8)),
        ("deepseek-v3", Layout(tp=8, ep=8, dcp=4)),
        ("gpt-oss-120b", Layout(tp=4, cp=2)),
        ("llama-3.1-8b", Layout(tp=1, cp=8)),
    ],
)
def test_what_can(name: str, layout: Layout) -> None:
    assert refusal(name, layout) is None


# --- memory -------------------------------------------------------------------------------------------------------


def test_a_latent_cache_is_held_once_over_its_gpus() -> None:
    """DeepSeek-V3: 576 values * 61 layers * 2 bytes = 70,272 bytes a token on each GPU of TP8; with DCP8 an eighth, 8,784."""
    whole, cut = (
        memory_of(real_model("deepseek-v3"), real_gpu("h200-sxm"), Layout(tp=8, ep=8, dcp=dcp), engine=ENGINE)
        for dcp in (1, 8)
    )
    assert whole.kv_bytes_per_token == 70_272
    assert cut.kv_bytes_per_token == 8_784
    assert cut.weights_gib == whole.weights_gib
    assert cut.kv_cache_gib == whole.kv_cache_gib
    assert cut.max_concurrency == pytest.approx(8 * whole.max_concurrency, rel=1e-3)


def test_ranks_of_context_parallelism_hold_a_longer_sequence_together() -> None:
    """Llama-3.1-8B on one L4 has room for some tokens; on two, each with half of a sequence's cache, for twice as many."""
    model, gpu = real_model("llama-3.1-8b"), real_gpu("l4")
    one, two = (memory_of(model, gpu, Layout(cp=cp), engine=ENGINE, max_model_len=8192) for cp in (1, 2))
    assert one.kv_bytes_per_token == 2 * two.kv_bytes_per_token == 131_072
    assert two.max_concurrency >= 2 * one.max_concurrency
    assert two.weights_gib == one.weights_gib


# --- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [prompt(8192), prompt(4096, prior=12_288), decoding(64, 4096)])
@pytest.mark.parametrize(("name", "layout"), [("llama-3.1-8b", Layout(cp=4)), ("mixtral-8x7b", Layout(tp=2, cp=2))])
def test_work_is_shared_and_none_is_lost(name: str, layout: Layout, batch: Batch) -> None:
    """Each of cp ranks has a cp-th of the products; experts are of all GPUs of the stage already."""
    one, many = timed(name, Layout(tp=layout.tp), batch), timed(name, layout, batch)
    assert flops(many) * layout.cp == pytest.approx(flops(one), rel=1e-9)
    # Never better than sharing everything; and what is exchanged is named.
    assert many.total_s >= one.total_s / layout.cp
    assert {o.operation.name for o in many.operations} & set(GATHERED)
    assert not {o.operation.name for o in one.operations} & set(GATHERED)


def test_exchanged_messages_by_hand() -> None:
    """Llama-3.1-8B, 32 query and 8 KV heads of 128, CP4 at TP2: a GPU has 16 query and 4 KV heads.

    Prefill of 1,000 tokens after 3,000: keys and values of all 4,000 tokens, 4 heads * 128 * 2 * 2 bytes = 2,048 bytes a token.
    Decode of 64 sequences: queries and outputs 16 * 128 * 2 = 4,096 bytes each a sequence, sums 16 * 4 = 64 bytes.
    """
    layout = Layout(tp=2, cp=4)
    batch = Batch(
        decode_sequences=64.0,
        decode_context_tokens=500.0,
        prefill_sequences=1.0,
        prefill_tokens=1000.0,
        prefill_prior_tokens=3000.0,
    )
    found = {o.operation.name: o.operation for o in timed("llama-3.1-8b", layout, batch).operations}
    assert found["cp_keys"].message_bytes == 4000 * 2048
    assert found["cp_queries"].message_bytes == found["cp_outputs"].message_bytes == 64 * 4096
    assert found["cp_sums"].message_bytes == 64 * 64
    for name in ("cp_keys", "cp_queries", "cp_sums", "cp_outputs"):
        assert (found[name].gpus, found[name].apart, found[name].count) == (4, 2, 32)
    # Each rank reads its quarter of 64 caches of 500 tokens, 4 heads * 128 * 2 * 2 bytes a token.
    assert found["decode_gqa"].bytes == 64 / 4 * 500 * 2048


def test_latent_messages_by_hand() -> None:
    """DeepSeek-V3 at TP8, DCP8: queries of all 128 heads, 576 wide, to each GPU; outputs 512 wide; its part of each cache.

    A sequence's queries 128 * 576 * 2 = 147,456 bytes, outputs 131,072, sums 512. 1,152 bytes a token of latent, an eighth of it.
    """
    layout = Layout(tp=8, ep=8, dcp=8)
    operations_of = timed("deepseek-v3", layout, decoding(16, 8000)).operations
    found = {o.operation.name: o.operation for o in operations_of}
    assert found["dcp_queries"].message_bytes == 16 * 147_456
    assert found["dcp_outputs"].message_bytes == 16 * 131_072
    assert found["dcp_sums"].message_bytes == 16 * 512
    assert found["decode_mla"].bytes == 16 * 8000 * 1152 / 8
    assert found["decode_mla"].work.q_heads == 128
    assert "dcp_keys" not in found
    chunk = timed("deepseek-v3", layout, prompt(1000, prior=7000)).operations
    assert {o.operation.message_bytes for o in chunk if o.operation.name == "dcp_keys"} == {7000 * 1152}
    first = timed("deepseek-v3", layout, prompt(1000)).operations
    assert sum(o.seconds for o in first if o.operation.name == "dcp_keys") == 0.0  # nothing is cached yet


def test_long_contexts_gain_and_short_ones_lose() -> None:
    """DCP spares each GPU seven eighths of the latents it reads; what it exchanges does not grow with the context."""
    for context, gains in ((1000, False), (60_000, True)):
        one, cut = (
            timed("deepseek-v3", Layout(tp=8, ep=8, dcp=dcp), decoding(32, context), gpu="h200-sxm") for dcp in (1, 8)
        )
        assert (cut.total_s < one.total_s) is gains


# Llama-3-405B, FP8, one prompt of 131,072 tokens on nodes of eight H100 (HBM2e, 400 Gbit/s a GPU): seconds to the first token,
# Yang et al., "Context Parallelism for Scalable Million-Token Inference" (https://arxiv.org/abs/2411.01783); from memory.
LONG_PROMPT_S = {
    Layout(tp=8): 42.010,
    Layout(tp=16): 29.917,
    Layout(tp=32): 19.841,
    Layout(tp=8, cp=2): 21.042,
    Layout(tp=8, cp=4): 10.950,
}


def test_a_long_prompt_over_nodes_scales_as_published() -> None:
    """Context parallelism halves the time with each doubling, tensor parallelism over the network does not.

    Shares of one node's time; the GPUs of the paper are slower than the profile's (500 W).
    """
    batch = prompt(131_072)
    seconds = {layout: timed("llama-3.1-405b", layout, batch, precision="fp8").total_s for layout in LONG_PROMPT_S}
    base = Layout(tp=8)
    for layout, published_s in LONG_PROMPT_S.items():
        share = seconds[layout] / seconds[base]
        assert share == pytest.approx(published_s / LONG_PROMPT_S[base], rel=0.25), layout
    assert seconds[Layout(tp=8, cp=2)] < seconds[Layout(tp=16)]
    assert seconds[Layout(tp=8, cp=4)] < seconds[Layout(tp=32)]
    assert 0.7 * LONG_PROMPT_S[base] < seconds[base] < LONG_PROMPT_S[base]


def test_the_table_of_steps_agrees_with_the_exact_step() -> None:
    """Closed form and simulator look up what `step` adds up, exchange included, in a decode step of a pipeline too."""
    from sizing.engine.batch import DecodeBatch
    from sizing.engine.deployment import step_clock, windows_of
    from sizing.replica.curves import decode_step_s
    from sizing.replica.timing import Timing

    for serving in ({"tp": 2, "cp": 4}, {"tp": 2, "cp": 2, "pp": 2}):
        request = ask(real_model("llama-3.1-8b"), engine=ENGINE, isl=4000, osl=500, serving=serving)
        (chosen,) = [c for c in candidates(request.service, option(H100), None) if isinstance(c, Replica)]
        load = Timing().of(chosen)
        context = load.batching.isl + load.batching.osl / 2
        exact = timed("llama-3.1-8b", chosen.layout, decoding(16, round(context))).total_s
        tabled = float(decode_step_s(load.curves, load.batching, 16.0 * chosen.layout.pp))
        if chosen.layout.pp == 1:
            assert tabled == pytest.approx(exact, rel=0.02)
        else:  # a full pipeline passes a microbatch on every half of a pass
            assert tabled == pytest.approx(exact, rel=0.06)
        clock = step_clock(load.kernels, most_tokens=512, most_rows=64)
        batch = DecodeBatch(windows_of(load.kernels.shard.model))
        for number in range(16):
            batch.join(number, round(context), 100)
        if chosen.layout.pp == 1:
            assert clock.series(batch).time(1) == pytest.approx(exact, rel=0.02)


# --- the search and the command line ------------------------------------------------------------------------------


def document(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_engine_without_it_refuses() -> None:
    for engine, serving, words in (
        ("vllm:0.10.0", {"tp": 8, "dcp": 8}, "0.10.0 has no decode context parallelism"),
        ("sglang", {"tp": 8, "cp": 2}, "has no context parallelism"),
    ):
        request = ask(real_model("deepseek-v3"), engine=engine, serving=serving)
        outcome = search.search(request.with_(gpu_types=(option("h200-sxm"),), precisions=(None,)))
        assert outcome.best is None
        assert outcome.refusals[0].reason == "engine"
        assert words in outcome.refusals[0].detail


def test_a_long_prompt_gets_its_first_token_sooner(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (
        "estimate",
        "-m",
        "llama-3.1-70b",
        "-g",
        "h200-sxm",
        "--precision",
        "fp8",
        "--isl",
        "100000",
        "--osl",
        "200",
    )
    asked = (
        *asked,
        "--isl-max",
        "110000",
        "--rps",
        "0.02",
        "--tp",
        "8",
        "--pp",
        "1",
        "--max-num-batched-tokens",
        "32768",
    )
    one, four = (document(capsys, 0, *asked, "--cp", str(cp)) for cp in (1, 4))
    assert one["deployment"]["gpus_per_replica"] == 8
    assert four["deployment"]["gpus_per_replica"] == 32
    assert four["deployment"]["nodes_per_replica"] == 4
    ttft_one, ttft_four = (found["latency"]["ttft_ms"]["mean"] for found in (one, four))
    assert ttft_one / 4 < ttft_four < ttft_one / 2.5


def test_one_part_is_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("step", "-m", "deepseek-v3", "-g", "h200-sxm", "--tp", "8", "--decode", "8", "--context", "2000")
    assert document(capsys, 0, *asked) == document(capsys, 0, *asked, "--cp", "1", "--dcp", "1")


def test_windows_bound_what_is_gathered() -> None:
    """Prefill of a model with windows gathers the window of what is cached, not all of it."""
    model, layout = real_model("gpt-oss-120b"), Layout(tp=4, cp=2)
    kernels = kernels_for(model, real_gpu(H100), layout, engine=ENGINE)
    found = operations.prefill_attention(kernels.shard, 1.0, 512.0, 100_000.0)
    # 8 KV heads of 64 over TP4: 2 heads * 64 * 2 * 2 bytes = 512 a token; windows of 128 tokens.
    assert sorted({o.message_bytes for o in found if o.name == "cp_keys"}) == [512 * 640, 512 * 100_512]


def test_cp_and_dcp_together_exchange_what_all_their_gpus_need() -> None:
    """Llama-3.1-70B, TP16 CP2 DCP2: a GPU reads a quarter of each cache for 8 of 64 heads, of 128.

    64 sequences over CP2 are 32 on a rank. DCP gathers 8 heads of these, 32 * 8 * 128 * 2 = 65,536 bytes; CP then those of both
    ranks, 131,072, which is what the GPU needs for all 64.
    """
    layout = Layout(tp=16, cp=2, dcp=2)
    found = {o.operation.name: o.operation for o in timed("llama-3.1-70b", layout, decoding(64, 4000)).operations}
    assert found["dcp_queries"].message_bytes == 65_536
    assert found["cp_queries"].message_bytes == found["cp_outputs"].message_bytes == 131_072
    assert found["cp_sums"].message_bytes == 64 * 8 * 4
    assert found["decode_gqa"].work.q_heads == 8
