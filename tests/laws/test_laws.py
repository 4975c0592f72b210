"""Laws that hold whatever the constants: more hardware is no slower, less work no dearer, parts sum up."""

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
    data,
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

from sizing.answers import search
from sizing.answers.answer import Answer, Outcome
from sizing.catalog import profiles
from sizing.model import architecture, memory, operations, precision
from sizing.model.architecture import Layout, Shard
from sizing.replica import batching, replica, surfaces
from sizing.replica import curves as curves_of
from sizing.replica.curves import lookup
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica
from sizing.replica.step import Batch, gpu_seconds, step
from sizing.replica.timing import Timed, timed
from sizing.specs.errors import InputError
from sizing.specs.model import Model

MODELS = ("llama-3.1-8b", "gpt-oss-120b", "deepseek-v2-lite", "qwen3-30b-a3b", "qwen3-next-80b-a3b")
GPUS = ("a100-sxm-80gb", "h100-sxm", "b200", "l40s", "mi300x")
HAIR = 1 + 1e-9

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


def seconds(model: Model, layout: Layout, kernels: Kernels, batch: Batch) -> float:
    return step(replace(kernels, shard=replace(kernels.shard, model=model, layout=layout)), batch).total_s


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
    bits = [data().formats.formats[name].bits for name in BY_BITS]
    assert bits == sorted(bits, reverse=True)
    # Kernels pad MXFP4 widths, so that format alone may weigh more than its bits.
    names = [name for name in BY_BITS if name != "mxfp4"]
    stage = architecture.whole(spec)
    weights = [
        memory.weight_bytes(Shard(spec, Layout(), settings, plan_for(spec, gpu, settings, name)), stage)
        for name in names
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

    One sequence hits few experts: there the measured kernels that quantise their inputs first are slower than those in 16 bit.
    """
    spec = real_model(model)
    wide, thin = (kernels_for(spec, real_gpu(gpu), engine=engine, precision_name=name) for name in ("bf16", narrow))
    slower = {}
    for sequences in (*(() if architecture.is_moe(spec) else (1,)), 8, 32, 64, 128, 256):
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
        return sum(memory.weight_bytes(Shard(spec, Layout(pp=depth), settings, plan), s) for s in stages)

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
                assert all(v is None or math.isfinite(v) for v in dataclasses.astuple(used))


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
    laid, _ = replica.unchecked(service, replace(option("h100-sxm"), gpu=gpu), Layout(), None, data())
    longest = laid.longest_that_fits()
    assert 0 < longest < spec.max_position
    assert memory_of(spec, gpu, engine=engine, max_model_len=longest).fits
    assert not memory_of(spec, gpu, engine=engine, max_model_len=longest + 1).fits


# --- closed form ----------------------------------------------------------------------------------


@cache
def load_of(model: str, gpu: str, tp: int, engine: str, isl: int = 1000, osl: int = 200) -> tuple[Timed, Replica]:
    asked = ask(real_model(model), engine=engine, isl=isl, osl=osl, serving={"tp": tp, "pp": 1})
    found = next(c for c in replica.candidates(asked.service, option(gpu), None, data()) if isinstance(c, Replica))
    return timed(found, data()), found


LOADS = [
    ("llama-3.1-8b", "h100-sxm", 1, "vllm:0.19.0"),
    ("llama-3.1-8b", "h100-sxm", 2, "sglang"),
    ("qwen3-30b-a3b", "b200", 2, "tensorrt-llm"),
    ("deepseek-v2-lite", "a100-sxm-80gb", 2, "vllm:0.7.0"),
]


@given(
    st.sampled_from(LOADS),
    st.lists(st.floats(0.01, 400.0), min_size=1, max_size=8),
    st.sampled_from(["open_loop", "closed_loop"]),
)
def test_a_vector_of_loads_gives_what_each_gives_alone(
    where: tuple[str, str, int, str], values: list[float], form: str
) -> None:
    load, _ = load_of(*where)
    function = getattr(batching, form)
    loads = np.array([max(1.0, v) if form == "closed_loop" else v for v in values])
    together = function(load.curves, load.batching, loads)
    for index, value in enumerate(loads):
        alone = function(load.curves, load.batching, np.array([value]))
        for name in ("requests_per_s", "decoding", "running", "prefill_share"):
            assert getattr(together, name)[index] == pytest.approx(getattr(alone, name)[0], rel=1e-12), name
        for name in ("ttft_s", "itl_s", "e2e_s"):
            for statistic, array in getattr(together, name).items():
                assert array[index] == pytest.approx(getattr(alone, name)[statistic][0], rel=1e-12)


def assert_close_but_beside_a_jump(found: Any, exact: Any, of: Any) -> None:
    """Measured kernels jump where the engine takes another kernel or all-reduce: a line between two points is less exact there."""
    error = np.abs(found / exact - 1)
    assert error.max() < 5e-3, f"{error.max():.2%} at {of[error.argmax()]:.0f}"
    assert (error > 1e-3).mean() < 0.02


@pytest.mark.parametrize("where", LOADS)
def test_tabulated_steps_are_the_exact_ones_within_a_thousandth_but_beside_a_jump(
    where: tuple[str, str, int, str],
) -> None:
    load, _ = load_of(*where)
    kernels, table = load.kernels, load.curves
    tokens = np.concatenate([np.arange(1.0, 200.0), np.geomspace(200, 60_000, 200)])
    for operation, tabulated in ((operations.body, table.body_s), (operations.head, table.head_s)):
        exact = np.array([float(gpu_seconds(operation(kernels.shard, number), kernels)) for number in tokens])
        assert_close_but_beside_a_jump(lookup(table.grid, tabulated, tokens), exact, tokens)


@pytest.mark.parametrize("where", LOADS)
def test_tabulated_decodes_are_the_exact_ones_within_a_thousandth_but_beside_a_jump(
    where: tuple[str, str, int, str],
) -> None:
    load, _ = load_of(*where)
    sequences = np.arange(1.0, 513.0)
    context = load.batching.isl + load.batching.osl / 2
    batches = [Batch(decode_sequences=number, decode_context_tokens=context) for number in sequences]
    layout = Layout(tp=where[2])
    exact = np.array([seconds(real_model(where[0]), layout, load.kernels, batch) for batch in batches])
    assert_close_but_beside_a_jump(curves_of.decode_step_s(load.curves, load.batching, sequences), exact, sequences)


@pytest.mark.parametrize("where", LOADS)
def test_throughput_and_latency_grow_with_load(where: tuple[str, str, int, str]) -> None:
    load, _ = load_of(*where)
    point = batching.open_loop(load.curves, load.batching, np.geomspace(1e-3, load.slots, 300))
    stable = point.stable
    assert (np.diff(point.requests_per_s[stable]) > 0).all()
    itl_s = point.itl_s["mean"][stable]
    # To within 2 %: where few experts are hit a step grows faster with its tokens than where most are, and the closed form
    # joins both sides of that bend.
    assert (np.diff(itl_s) >= -0.02 * itl_s[1:]).all()
    assert (np.diff(point.running[stable]) > 0).all()


@pytest.mark.parametrize("where", LOADS)
def test_percentiles_are_in_order(where: tuple[str, str, int, str]) -> None:
    load, _ = load_of(*where)
    loads = np.geomspace(1.0, load.slots, 60)
    for form in (batching.open_loop, batching.closed_loop):
        point = form(load.curves, load.batching, loads)
        for name in ("ttft_s", "itl_s", "e2e_s"):
            values = getattr(point, name)
            for low, high in (("p50", "p90"), ("p90", "p95"), ("p95", "p99")):
                assert (values[low][point.stable] <= values[high][point.stable] * HAIR).all(), (
                    form,
                    name,
                    low,
                )


@pytest.mark.parametrize("where", LOADS)
def test_a_request_that_is_alone_waits_for_nothing(where: tuple[str, str, int, str]) -> None:
    load, _ = load_of(*where)
    point = batching.open_loop(load.curves, load.batching, np.array([1e-9]))
    assert point.ttft_s["mean"][0] == pytest.approx(load.solo_ttft_s, rel=1e-6)
    assert point.itl_s["mean"][0] == pytest.approx(load.solo_itl_s, rel=1e-6)
    closed = batching.closed_loop(load.curves, load.batching, np.array([1.0]))
    assert closed.ttft_s["mean"][0] == pytest.approx(load.solo_ttft_s, rel=1e-6)
    assert closed.itl_s["mean"][0] == pytest.approx(load.solo_itl_s, rel=1e-6)


@pytest.mark.parametrize(
    ("engine", "isl"),
    [
        (engine, isl)
        for engine in ("vllm:0.7.0", "vllm:0.19.0", "tensorrt-llm", "sglang")
        for isl in (1, 1000, 8000, 100_000)
        if (engine, isl) != ("tensorrt-llm", 100_000)  # refused: it does not chunk prompts beyond its token budget
    ],
)
@pytest.mark.parametrize("osl", [1, 2, 200])
def test_no_result_is_nan_or_infinite(engine: str, isl: int, osl: int) -> None:
    load, _ = load_of("llama-3.1-8b", "h100-sxm", 2, engine, isl, osl)
    with np.errstate(all="raise", under="ignore"):
        for form, loads in (
            (
                batching.open_loop,
                np.geomspace(1e-6, min(0.99, load.slots) if osl == 1 else load.slots, 50),
            ),
            (batching.closed_loop, np.arange(1.0, min(load.slots, 200) + 1)),
        ):
            point = form(load.curves, load.batching, loads)
            for name in ("requests_per_s", "decoding", "running", "prefill_share"):
                assert np.isfinite(getattr(point, name)).all(), (form, name)
            for name in ("ttft_s", "itl_s", "e2e_s"):
                for statistic, values in getattr(point, name).items():
                    assert np.isfinite(values).all(), (form, name, statistic)
                    assert (values >= 0).all(), (form, name, statistic)


@pytest.mark.parametrize(("shorter", "longer"), [((500, 200), (1000, 200)), ((1000, 100), (1000, 200))])
@pytest.mark.parametrize("where", LOADS)
def test_shorter_requests_are_served_no_slower(
    where: tuple[str, str, int, str], shorter: tuple[int, int], longer: tuple[int, int]
) -> None:
    """Alone, together, and in most that a replica serves."""
    small, large = (load_of(*where, isl, osl)[0] for isl, osl in (shorter, longer))
    assert small.solo_ttft_s <= large.solo_ttft_s * HAIR
    assert small.solo_itl_s <= large.solo_itl_s * HAIR
    assert small.slots >= large.slots
    flying = np.array([1.0, 8.0, 32.0])
    points = [batching.closed_loop(x.curves, x.batching, flying) for x in (small, large)]
    assert (points[0].e2e_s["mean"] <= points[1].e2e_s["mean"] * HAIR).all()


# --- search ---------------------------------------------------------------------------------------


@cache
def outcome(
    gpu_names: tuple[str, ...],
    rate: float | None = 20.0,
    *,
    concurrency: int | None = None,
    ttft: str | None = None,
    itl: str | None = None,
    e2e: str | None = None,
    headroom: float | str | None = None,
    max_utilisation: float | None = None,
    objective: str = "gpus",
    isl: int = 1000,
    osl: int = 200,
) -> Outcome:
    limits = {name: value for name, value in (("ttft", ttft), ("itl", itl), ("e2e", e2e)) if value}
    planning = {
        name: value
        for name, value in (
            ("headroom", headroom),
            ("max_utilisation", max_utilisation),
            ("objective", objective),
        )
        if value is not None
    }
    demand = {"concurrency": concurrency} if concurrency else {"requests_per_s": rate}
    asked = ask(
        real_model("llama-3.1-8b"),
        isl=isl,
        osl=osl,
        demand=demand,
        limits=limits,
        planning=planning,
        serving={"pp": 1},
    )
    prices = {"h100-sxm": 3.0, "a100-sxm-80gb": 1.5, "l40s": 1.0}
    return search.search(
        asked.with_(gpu_types=tuple(option(name, prices[name]) for name in gpu_names), precisions=(None,)), data()
    )


def best(*args: Any, **kwargs: Any) -> Answer:
    found = outcome(*args, **kwargs).best
    assert found is not None
    return found


@pytest.mark.parametrize("objective", ["gpus", "cost", "energy"])
def test_a_choice_of_cards_is_never_worse_than_one_of_them(objective: str) -> None:
    names = ("h100-sxm", "a100-sxm-80gb", "l40s")
    value = {
        "gpus": lambda e: e.gpus,
        "cost": lambda e: e.usd_per_hour,
        "energy": lambda e: e.power_w,
    }[objective]
    alone = [value(best((name,), objective=objective)) for name in names]
    assert value(best(names, objective=objective)) == min(alone)


def gpus_needed(**kwargs: Any) -> float:
    found = outcome(("h100-sxm",), **kwargs).best
    return math.inf if found is None else found.gpus


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rate", [0.1, 1.0, 5.0, 20.0, 80.0, 300.0]),
        ("concurrency", [1, 10, 100, 500, 2000]),
        ("headroom", [0.0, 0.1, 0.5, 1.0, "300%"]),
        ("isl", [100, 500, 2000, 8000]),
        ("osl", [20, 100, 400, 1600]),
    ],
)
def test_more_demand_never_needs_fewer_gpus(name: str, values: list[float]) -> None:
    needed = [gpus_needed(**{name: value}) for value in values]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1] < math.inf


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ttft", ["10s", "1s", "300ms", "100ms", "50ms", "1ms"]),
        ("ttft", ["p95:10s", "p95:1s", "p95:300ms", "p95:100ms", "p95:60ms", "p95:1ms"]),
        ("itl", ["1s", "100ms", "30ms", "15ms", "8ms", "10us"]),
        ("e2e", ["100s", "10s", "4s", "2s", "1s", "1ms"]),
        ("max_utilisation", [1.0, 0.9, 0.7, 0.5, 0.2]),
    ],
)
@pytest.mark.parametrize("demand", [{"rate": 60.0}, {"concurrency": 300}])
def test_tighter_limits_never_need_fewer_gpus(demand: dict[str, Any], name: str, values: list[Any]) -> None:
    needed = [gpus_needed(**demand, **{name: value}) for value in values]
    assert needed == sorted(needed)
    if not isinstance(values[-1], float):
        assert needed[-1] == math.inf


def test_an_answer_meets_its_limits_and_its_demand() -> None:
    found = outcome(("h100-sxm", "l40s"), 60.0, ttft="p95:500ms", itl="30ms")
    assert len(found.answers) > 3
    for each in found.answers:
        assert float(each.pool.point.ttft_s["p95"]) <= 0.5 * HAIR
        assert float(each.pool.point.itl_s["mean"]) <= 0.03 * HAIR
        assert each.requests_per_s == pytest.approx(60.0, rel=1e-6)
        assert each.pool.capacity.amount * each.pool.count >= 60.0 * (1 - 1e-9)
        assert each.pool.capacity.amount * (each.pool.count - 1) < 60.0
    ranked = [each.gpus for each in found.answers]
    assert ranked == sorted(ranked)


def test_every_layout_tried_is_ranked_or_refused_with_its_reason() -> None:
    found = outcome(("h100-sxm", "l40s"), 60.0, ttft="p95:500ms", itl="30ms")
    assert all(each.reason and each.detail for each in found.refusals)
    layouts = [(e.pool.replica.gpu_type.id, e.pool.replica.layout) for e in found.answers]
    layouts += [(r.gpu_type.id, r.layout) for r in found.refusals]
    assert len(set(layouts)) == len(layouts)


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
