"""Laws of one replica that hold whatever the constants: more hardware is no slower, less work no dearer, parts sum up."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from builders import (
    ask,
    engine_of,
    kernels_for,
    memory_of,
    option,
    plan_for,
    real_gpu,
    real_model,
    sequence_bytes,
    settings_for,
    toy_model,
    with_flops_times,
    with_memory,
    with_visible_gib,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from law_builders import HAIR, seconds

from sizing.catalog import profiles, shelf
from sizing.model import architecture, precision
from sizing.model.architecture import Layout, Shard
from sizing.model.footprint import weight_bytes
from sizing.replica import replica, surfaces
from sizing.replica.kernels import Kernels
from sizing.replica.step import Batch, step
from sizing.specs.data import Formats
from sizing.specs.errors import InputError

MODELS = ("llama-3.1-8b", "gpt-oss-120b", "deepseek-v2-lite", "qwen3-30b-a3b", "qwen3-next-80b-a3b")

GPUS = ("a100-sxm-80gb", "h100-sxm", "b200", "l40s", "mi300x")


# Prefill, decode and mixed steps of one replica.
BATCHES = st.builds(
    Batch,
    decode_sequences=st.integers(0, 512).map(float),
    decode_context_tokens=st.integers(1, 60_000).map(float),
    prefill_sequences=st.integers(0, 4).map(float),
    prefill_tokens=st.integers(1, 8192).map(float),
    prefill_prior_tokens=st.integers(0, 30_000).map(float),
    finishing=st.just(1.0),
).filter(lambda batch: batch.decode_sequences + batch.prefill_sequences > 0)


@cache
def kernels_of(model: str, gpu: str, tp: int = 1, **kwargs: Any) -> Kernels:
    return kernels_for(real_model(model), real_gpu(gpu), Layout(tp=tp), **kwargs)


# --- faster hardware, less work -------------------------------------------------------------------


@given(st.sampled_from(MODELS), st.sampled_from(GPUS), BATCHES, st.floats(1.01, 4.0))
def test_more_bandwidth_or_more_flops_is_never_slower(model: str, gpu: str, batch: Batch, factor: float) -> None:
    base = kernels_of(model, gpu)
    card = real_gpu(gpu)
    wider = with_memory(card, bandwidth_gb_per_s=card.datasheet.memory.bandwidth_gb_per_s * factor)
    before = seconds(real_model(model), Layout(), base, batch)
    for better in (wider, with_flops_times(card, factor)):
        kernels = dataclasses.replace(base, gpu=better)
        assert seconds(real_model(model), Layout(), kernels, batch) <= before * HAIR


@given(
    st.sampled_from(MODELS),
    st.sampled_from(GPUS),
    BATCHES,
    st.sampled_from(["decode_sequences", "decode_context_tokens", "prefill_sequences", "prefill_tokens"]),
    st.floats(0.0, 1.0),
)
def test_less_work_is_never_slower(model: str, gpu: str, batch: Batch, field: str, share: float) -> None:
    """Fewer sequences, shorter contexts and shorter prompts: none makes a step longer."""
    smaller = dataclasses.replace(batch, **{field: math.floor(getattr(batch, field) * share)})
    assume(smaller.decode_sequences + smaller.prefill_sequences > 0)
    assume(smaller.prefill_tokens > 0 and smaller.decode_context_tokens > 0)
    kernels = kernels_of(model, gpu)
    after, before = (seconds(real_model(model), Layout(), kernels, b) for b in (smaller, batch))
    assert after <= before * HAIR


@pytest.mark.parametrize("name", profiles.GPUS.ids)
def test_attention_of_a_longer_prompt_is_never_faster(name: str) -> None:
    """Work grows with length squared, so time is length^2 / share: also between and beyond the points."""
    length = np.geomspace(1.0, 200_000.0, 3000)
    rows = [row for row in real_gpu(name).efficiency if row.operation == "prefill_attention"]
    for row in rows:
        time = length**2 / surfaces.curve_share(length, row.tokens, row.flop_fraction)
        fall = float((time / np.maximum.accumulate(time)).min())
        assert fall >= 1 - 1e-9, f"{row.engine} {row.precision} {row.head_dim}: falls to {fall:.3f}"


def test_less_cached_before_a_chunk_is_never_slower() -> None:
    """54 new tokens after 70 cached ones against after 428."""
    times = [
        seconds(
            real_model("llama-3.1-8b"),
            Layout(),
            kernels_of("llama-3.1-8b", "b200"),
            Batch(prefill_sequences=4.0, prefill_tokens=54.0, prefill_prior_tokens=prior, finishing=1.0),
        )
        for prior in (70.0, 428.0)
    ]
    assert times[0] <= times[1]


@given(st.sampled_from(MODELS), st.integers(1, 100_000), st.integers(0, 30_000), st.sampled_from(["auto", "fp8"]))
def test_a_sequence_never_shrinks_with_its_tokens(model: str, tokens: int, more: int, kv: str) -> None:
    short, long = (sequence_bytes(real_model(model), n, kv=kv) for n in (tokens, tokens + more))
    assert short <= long


@given(st.integers(0, 8000), st.integers(0, 8000), st.sampled_from(["llama-3.1-8b", "deepseek-v2-lite"]))
def test_a_sequence_is_affine_in_its_blocks(blocks: int, more: int, model: str) -> None:
    """Each block of an unwindowed layer costs the same, and one token of it as much as all."""
    spec = real_model(model)
    size = settings_for(spec, real_gpu("h100-sxm"), Layout()).block_tokens
    one = sequence_bytes(spec, size) - sequence_bytes(spec, 0)
    assert sequence_bytes(spec, size * blocks) == pytest.approx(sequence_bytes(spec, 0) + blocks * one)
    assert sequence_bytes(spec, size * blocks + 1) == sequence_bytes(spec, size * (blocks + 1))
    assert sequence_bytes(spec, size * (blocks + more)) == pytest.approx(
        sequence_bytes(spec, size * blocks) + more * one
    )


def test_a_full_window_stops_growing() -> None:
    """Gemma 3: beyond window and chunk only one layer in six grows; the layers of 12B fill their groups."""
    model = real_model("gemma-3-12b")
    early = sequence_bytes(model, 1024) - sequence_bytes(model, 512)
    late = sequence_bytes(model, 65_536 + 512) - sequence_bytes(model, 65_536)
    full = sum(model.kinds[i].mixer.kind == "gqa" for i in model.layers)  # type: ignore[union-attr]
    assert late / early == pytest.approx(full / len(model.layers))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("field", ["max_num_batched_tokens", "max_num_seqs"])
def test_smaller_budgets_never_take_more_memory(model: str, field: str) -> None:
    used = [
        memory_of(real_model(model), real_gpu("h200-sxm"), Layout(tp=2), **{field: value})
        for value in (256, 1024, 4096, 16_384)
    ]
    activation = [u.activation_gib for u in used]
    assert activation == sorted(activation)
    pools = [u.kv_cache_gib for u in used]
    assert pools == sorted(pools, reverse=True)


# --- precision ------------------------------------------------------------------------------------

BY_BITS = ("fp32", "bf16", "fp8", "nvfp4", "mxfp4", "int4")


@pytest.mark.parametrize("model", MODELS)
def test_fewer_bits_never_weigh_more(model: str) -> None:
    spec, gpu = real_model(model), real_gpu("b200")
    settings = settings_for(spec, gpu, Layout())
    bits = [shelf.only(Formats).formats[name].bits for name in BY_BITS]
    assert bits == sorted(bits, reverse=True)
    # Kernels pad MXFP4 widths, so that format alone may weigh more than its bits.
    names = [name for name in BY_BITS if name != "mxfp4"]
    stage = architecture.whole(spec)
    weights = [
        weight_bytes(Shard(spec, Layout(), settings, plan_for(spec, gpu, settings, name)), stage) for name in names
    ]
    assert weights == sorted(weights, reverse=True)


NATIVE = [
    (gpu, engine, narrow)
    for gpu, narrows in {
        "a100-sxm-80gb": ("int8",),
        "l40s": ("fp8",),
        "h100-sxm": ("fp8",),
        "h200-sxm": ("fp8",),
        "b200": ("fp8", "nvfp4"),
        "mi300x": ("fp8",),
    }.items()
    for engine in ("vllm:0.19.0", "tensorrt-llm", "sglang")
    for narrow in narrows
    if (gpu, engine) != ("mi300x", "tensorrt-llm")  # does not run on this vendor's cards
]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b"])
@pytest.mark.parametrize(("gpu", "engine", "narrow"), NATIVE)
def test_native_narrow_weights_are_never_slower_in_decode(gpu: str, engine: str, narrow: str, model: str) -> None:
    """Half the bytes and twice the peak: a decode step must not take longer than in 16 bit.

    One sequence hits few experts: there the measured kernels that quantise their inputs first are slower than those in 16 bit. On
    MI300X experts with block scales start so late, by published runs, that eight sequences do not either.
    """
    spec = real_model(model)
    wide, thin = (kernels_for(spec, real_gpu(gpu), engine=engine, precision_name=name) for name in ("bf16", narrow))
    slower = {}
    few = (8,) if architecture.is_moe(spec) and gpu != "mi300x" else ()
    for sequences in (*(few if architecture.is_moe(spec) else (1, 8)), 32, 64, 128, 256):
        batch = Batch(decode_sequences=float(sequences), decode_context_tokens=1000.0)
        before, after = (seconds(spec, Layout(), k, batch) for k in (wide, thin))
        if after > before * HAIR:
            slower[sequences] = round(after / before, 3)
    assert not slower, f"sequences: {narrow} over bf16 {slower}"


def test_weight_only_formats_save_memory_and_not_compute() -> None:
    """INT4 multiplies at 16 bit: a decode of one is faster, a prefill of thousands is not."""
    spec = real_model("llama-3.1-8b")
    wide, thin = (kernels_for(spec, real_gpu("h100-sxm"), precision_name=name) for name in ("bf16", "int4"))
    assert thin.plan.weight_only
    one = Batch(decode_sequences=1.0, decode_context_tokens=100.0)
    many = Batch(prefill_sequences=1.0, prefill_tokens=8192.0, finishing=1.0)
    assert seconds(spec, Layout(), thin, one) < seconds(spec, Layout(), wide, one)
    assert seconds(spec, Layout(), thin, many) >= seconds(spec, Layout(), wide, many)


# --- parallelism conserves the model --------------------------------------------------------------


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("model", [*MODELS, "llama-3.1-70b", "deepseek-r1"])
def test_tensor_parallelism_conserves_split_matrices_and_only_adds_copies(model: str, tp: int) -> None:
    spec = real_model(model)
    padding = {"vocabulary_padding": 64}
    one = architecture.stage_matrices(spec, architecture.whole(spec), Layout(), **padding)
    many = architecture.stage_matrices(spec, architecture.whole(spec), Layout(tp=tp), **padding)
    assert len(one) == len(many)
    for (alone, count), (rank, rank_count) in zip(one, many, strict=True):
        assert (alone.name, count) == (rank.name, rank_count)
        assert rank.parameters * tp >= alone.parameters * (1 - 1e-12), alone.name
        assert rank.parameters <= alone.parameters, alone.name
        if alone.role in {"dense_mlp", "expert", "embedding", "lm_head"} and not alone.bias:
            assert rank.parameters * tp == pytest.approx(alone.parameters), alone.name


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_expert_parallelism_conserves_experts(ep: int) -> None:
    spec = real_model("qwen3-30b-a3b")
    (mlp,) = spec.kinds[0].mlps
    experts = architecture.expert_matrices(mlp, spec.hidden_size, Layout(tp=8, ep=ep))  # type: ignore[arg-type]
    whole = architecture.expert_matrices(mlp, spec.hidden_size, Layout())  # type: ignore[arg-type]
    assert sum(m.parameters for m in experts) * 8 == pytest.approx(sum(m.parameters for m in whole))


@pytest.mark.parametrize("rule", ["last", "before_last", "tail", "head"])
@pytest.mark.parametrize("pp", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("model", [*MODELS, "gemma-3-27b"])
def test_pipelines_conserve_layers_and_weights(model: str, pp: int, rule: str) -> None:
    """Every layer once; a tied embedding is held at both ends of a pipeline, once on a single stage."""
    spec = real_model(model)
    gpu = real_gpu("h100-sxm")
    settings = settings_for(spec, gpu, Layout())
    plan = plan_for(spec, gpu, settings)

    def weights(stages: tuple[architecture.Stage, ...], depth: int) -> float:
        return sum(weight_bytes(Shard(spec, Layout(pp=depth), settings, plan), s) for s in stages)

    stages = architecture.stages(spec, pp, rule)
    assert len(stages) == pp
    assert sum(count for stage in stages for _, count in stage.layers) == len(spec.layers)
    assert [stage.first for stage in stages] == [True] + [False] * (pp - 1)
    assert [stage.last for stage in stages] == [False] * (pp - 1) + [True]
    second = 0.0
    if spec.tied_embeddings and pp > 1:
        head = architecture.head_matrix(spec, 1, settings.vocabulary_padding)
        second = head.parameters * plan.weight_bytes("lm_head")
    whole = weights((architecture.whole(spec),), 1)
    assert weights(stages, pp) == pytest.approx(whole + second)


@given(st.integers(1, 200), st.integers(1, 16), st.sampled_from(["last", "before_last", "tail", "head"]))
def test_stage_sizes_add_up_and_differ_little(layers: int, pp: int, rule: str) -> None:
    assume(pp <= layers)
    sizes = architecture.stage_sizes(layers, pp, rule)
    assert sum(sizes) == layers
    assert len(sizes) == pp
    assert min(sizes) == layers // pp
    assert rule == "last" or max(sizes) <= layers // pp + 1


# --- memory is finite -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", profiles.ENGINES.ids)
@pytest.mark.parametrize("gpu", profiles.GPUS.ids)
def test_weights_framework_and_cache_never_exceed_the_card(gpu: str, engine: str) -> None:
    spec, newest = engine_of(engine)
    toy = toy_model(layers=16)
    for version in (spec.oldest, newest):
        for fraction in (None, 0.5, 1.0):
            for layout in (Layout(), Layout(tp=4), Layout(pp=4)):
                changes = {} if fraction is None else {"memory_fraction": fraction}
                used = memory_of(toy, real_gpu(gpu), layout, engine=f"{engine}:{version}", **changes)
                total = used.weights_gib + used.non_torch_gib + used.kv_cache_gib
                assert total <= used.visible_gib * HAIR, (version, fraction, layout)
                assert used.kv_cache_tokens * used.kv_bytes_per_token <= used.kv_cache_gib * 2**30 * HAIR
                assert used.fits == (used.deficit_gib == 0)
                assert all(v is None or math.isfinite(v) for v in used)


@given(st.floats(0.3, 0.99), st.floats(0.3, 0.99), st.sampled_from(["vllm:0.19.0", "tensorrt-llm", "sglang"]))
def test_a_larger_fraction_never_leaves_a_smaller_pool(one: float, other: float, engine: str) -> None:
    low, high = sorted((one, other))
    pools = [
        memory_of(real_model("llama-3.1-8b"), real_gpu("h100-sxm"), engine=engine, memory_fraction=f).kv_cache_gib
        for f in (low, high)
    ]
    assert pools[0] <= pools[1] * HAIR


@pytest.mark.parametrize("engine", ["vllm:0.19.0", "tensorrt-llm", "sglang"])
def test_the_longest_sequence_that_fits_is_the_longest(engine: str) -> None:
    """One token more does not fit, its own length does (8B in BF16 on 24 GiB)."""
    spec, gpu = real_model("llama-3.1-8b"), with_visible_gib(real_gpu("h100-sxm"), 24.0)
    service = ask(spec, engine=engine, isl=8, osl=8).service
    laid, _ = replica.unchecked(service, replace(option("h100-sxm"), gpu=gpu), Layout(), None)
    longest = laid.longest_that_fits()
    assert 0 < longest < spec.max_position
    assert memory_of(spec, gpu, engine=engine, max_model_len=longest).fits
    assert not memory_of(spec, gpu, engine=engine, max_model_len=longest + 1).fits


# --- search ---------------------------------------------------------------------------------------


def test_a_gpu_without_constants_is_refused_by_name() -> None:
    """No number is made up: a card of an unknown architecture raises, and says what is missing."""
    stranger = real_gpu("t4").model_copy(update={"architecture": "unknown", "efficiency": ()})
    kernels = kernels_for(real_model("llama-3.1-8b"), stranger)
    with pytest.raises(InputError, match="no measured or assumed efficiency of gemm"):
        seconds(real_model("llama-3.1-8b"), Layout(), kernels, Batch(decode_sequences=1.0))


def test_a_step_reports_shares_of_its_peaks() -> None:
    """A decode of one reads every weight once: MBU is bytes over time and peak, and stays below 1."""
    kernels = kernels_of("llama-3.1-8b", "h100-sxm")
    found = step(kernels, Batch(decode_sequences=1.0, decode_context_tokens=1000.0))
    # All weights but the embedding's table, 8.03e9 - 128,256 x 4,096, and 1,000 tokens of cache
    read = (8.030e9 - 128_256 * 4096) * 2 + 1000 * 131_072
    assert found.mbu * found.total_s * kernels.bandwidth_bytes_per_s == pytest.approx(read, rel=0.01)
    assert 0 < found.mfu < found.mbu < 1
    assert precision.peak_of("nvfp4") == "fp4"
