"""What engines refuse, what input is refused, and the units, capacity and cost rules that users get wrong."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from builders import (
    ask,
    engine_of,
    found_model,
    memory_of,
    option,
    plan_for,
    real_gpu,
    real_model,
    sequence_bytes,
    settings_for,
    toy_model,
)

from sizing.answers import search
from sizing.catalog import models, profiles
from sizing.model import architecture, precision
from sizing.model.architecture import Layout
from sizing.question import question
from sizing.replica import replica
from sizing.replica.replica import Refusal, Replica
from sizing.specs import demand, units
from sizing.specs.errors import InputError
from sizing.specs.model import DenseMlp, GqaAttention, Model, Quantisation
from sizing.specs.units import GIB
from sizing.specs.workload import Workload


def refusal(
    model: Model,
    layout: Layout,
    *,
    gpu: str = "h100-sxm",
    engine: str = "vllm:0.19.0",
    name: str | None = None,
) -> str | None:
    """Why an engine refuses a layout, asked as the search asks."""
    settings = settings_for(model, real_gpu(gpu), layout, engine)
    plan = plan_for(model, real_gpu(gpu), settings, name)
    return architecture.why_not(model, layout, settings, block=plan.block and settings.fp8_block)


def block_fp8(name: str) -> Model:
    """A catalogue model as its publisher's FP8 checkpoint has it: scales for blocks of 128 x 128."""
    return replace(real_model(name), quantisation=Quantisation("fp8_block", block=128))


# --- what engines refuse --------------------------------------------------------------------------


def test_heads_must_divide() -> None:
    """64 heads do not divide by 3; by 4 they do, and 80 layers take three stages. vllm-project/vllm issue
    5003.
    """
    model = real_model("llama-3-70b")
    assert "64 attention heads" in (refusal(model, Layout(tp=3), gpu="a100-sxm-80gb") or "")
    assert refusal(model, Layout(tp=4), gpu="a100-sxm-80gb") is None
    assert refusal(model, Layout(pp=3), gpu="a100-sxm-80gb") is None


def test_the_vocabulary_must_divide_even_where_heads_do() -> None:
    """Qwen3-14B: 40 heads divide by 5, but its vocabulary of 151,936 (a multiple of 64) leaves 1."""
    model = real_model("qwen3-14b")
    assert refusal(model, Layout(tp=5)) is not None
    assert refusal(model, Layout(tp=4)) is None
    # Every other width divides by 5 here: 40 and 5 heads, 4,000; the vocabulary of 151,935 is padded to
    # 151,936.
    toy = toy_model(mixer=GqaAttention(40, 5, 64), mlp=DenseMlp(4000, gated=True), hidden_size=2560, vocab_size=151_935)
    assert "vocabulary 151,936" in (refusal(toy, Layout(tp=5)) or "")
    assert refusal(replace(toy, vocab_size=151_980), Layout(tp=5)) is None  # padded to 152,000 = 5 x 30,400


@pytest.mark.parametrize(
    ("name", "refused", "accepted"),
    [
        # 1536/8 = 192 is no multiple of 128, 1536/4 = 384 is; with experts split whole the width stays.
        # https://github.com/vllm-project/vllm/pull/48173
        ("minimax-m2.7", [Layout(tp=8)], [Layout(tp=4), Layout(tp=8, ep=8)]),
        ("qwen3-235b-a22b", [Layout(tp=8)], [Layout(tp=4), Layout(tp=8, ep=8)]),
        # 768/4 = 192, 768/2 = 384. https://github.com/vllm-project/vllm/issues/25292
        ("qwen3-30b-a3b", [Layout(tp=4)], [Layout(tp=2), Layout(tp=4, ep=4)]),
        # 18,432/32 = 576 = 4.5 x 128, 18,432/16 = 1152 = 9 x 128. https://github.com/sgl-
        # project/sglang/issues/3345
        ("deepseek-r1", [Layout(tp=32), Layout(tp=32, ep=32)], [Layout(tp=16)]),
    ],
)
def test_block_scaled_weights_split_into_whole_blocks(name: str, refused: list[Layout], accepted: list[Layout]) -> None:
    for layout in refused:
        assert "not a multiple of the FP8 block width 128" in (refusal(block_fp8(name), layout) or ""), layout
    for layout in accepted:
        assert refusal(block_fp8(name), layout) is None, layout


@pytest.mark.parametrize(("name", "tp"), [("Qwen/Qwen3-235B-A22B-FP8", 8), ("Qwen/Qwen3-30B-A3B-FP8", 4)])
def test_a_block_scaled_checkpoint_is_known_by_its_name(name: str, tp: int) -> None:
    """Both checkpoints' config.json states weight_block_size [128, 128]; users give the
    name alone.
    """
    found = found_model(name)
    assert refusal(found.spec, Layout(tp=tp), name=found.precision) is not None


def test_unblocked_weights_split_anywhere() -> None:
    assert refusal(real_model("qwen3-30b-a3b"), Layout(tp=4)) is None


def test_the_cache_is_split_with_the_heads() -> None:
    """Qwen3-32B, 8 KV heads: at TP4 each GPU holds a quarter, so one pool holds four times the tokens."""
    whole = sequence_bytes(real_model("qwen3-32b"), 16_000)
    assert sequence_bytes(real_model("qwen3-32b"), 16_000, tp=4) == whole / 4
    # Beyond the KV heads they are replicated: TP16 holds as much on each GPU as TP8.
    assert sequence_bytes(real_model("qwen3-32b"), 16_000, tp=16) == whole / 8


# --- cache of one request -------------------------------------------------------------------------


def test_one_long_request_of_an_8b_takes_16_gib() -> None:
    """131,072 tokens x 131,072 B = 2^34 B. https://github.com/vllm-project/tpu-inference/pull/223"""
    assert sequence_bytes(real_model("llama-3.1-8b"), 131_072) == 16 * GIB


@pytest.mark.parametrize(("budget", "gib"), [(1024, 4.54), (8192, 4.79)])
def test_windows_hold_the_chunk_in_flight_too(budget: int, gib: float) -> None:
    """gpt-oss-120b: 18 full layers x 131,072 tokens, 18 windowed x (127 + budget, in blocks, and one more).

    9.0 GiB if all were full.

    https://github.com/vllm-project/vllm/issues/27508
    """
    held = sequence_bytes(real_model("gpt-oss-120b"), 131_072, max_num_batched_tokens=budget)
    assert held / GIB == pytest.approx(gib, rel=0.01)


def test_cache_bytes_per_token_count_kv_heads_and_bytes() -> None:
    """Qwen2.5-7B: 28 layers x 4 heads x 128 x 2 (key, value) x 2 B = 57,344. vllm-project/vllm issue 22291"""
    assert sequence_bytes(real_model("qwen2.5-7b"), 16_000) == 16_000 * 57_344


def test_blocks_are_rounded_up_and_counted_whole() -> None:
    """15,049 tokens in blocks of 128 take 118 (117.6); 118 of 1,444 blocks are 8.17 %."""
    model = real_model("mistral-small-24b-instruct-2501")
    one_block = sequence_bytes(model, 128, block_tokens=128)
    assert sequence_bytes(model, 1, block_tokens=128) == one_block
    assert sequence_bytes(model, 15_049, block_tokens=128) == 118 * one_block
    assert pytest.approx(0.0817, abs=5e-5) == 118 / 1444


def test_concurrency_is_tokens_over_length() -> None:
    """127,626 blocks of 16 are 2,042,016 tokens, 997.08 sequences of 2,048. vllm-project/vllm pull 13596"""
    used = memory_of(real_model("llama-3.2-1b"), real_gpu("h100-sxm"), max_model_len=2048)
    assert used.max_concurrency == pytest.approx(used.kv_cache_tokens / 2048, abs=16 / 2048)
    assert 127_626 * 16 == 2_042_016
    assert pytest.approx(997.08, abs=0.005) == 2_042_016 / 2048


def test_sixteen_gib_of_a_7b_cache() -> None:
    """16 GiB / 57,344 B = 299,593 tokens, 18,724 whole blocks = 299,584. vllm-project/vllm pull 44594"""
    blocks = int(16 * GIB // sequence_bytes(real_model("qwen2.5-7b"), 16))
    assert blocks * 16 == 299_584


def test_quantised_weights_keep_a_16_bit_cache() -> None:
    for name in ("int4", "nvfp4"):
        settings = settings_for(real_model("qwen2.5-7b"), real_gpu("b200"), Layout())
        assert plan_for(real_model("qwen2.5-7b"), real_gpu("b200"), settings, name).kv_bits == 16


def test_layers_without_a_cache_hold_none_and_states_do_not_grow() -> None:
    """Nemotron 3 Super: 8 of 88 layers cache; the 40 states are paid once, whatever the length."""
    model = real_model("nemotron-3-super-120b-a12b")
    assert len(model.layers) == 88
    kinds = [model.kinds[index].mixer for index in model.layers]
    assert sum(mixer is not None and mixer.kind == "gqa" for mixer in kinds) == 8
    assert sum(mixer is not None and mixer.kind == "ssm" for mixer in kinds) == 40
    fixed = sequence_bytes(model, 0)
    assert fixed > 0
    assert sequence_bytes(model, 32_000) - sequence_bytes(model, 16_000) == pytest.approx(
        sequence_bytes(model, 16_000) - fixed
    )


def test_cuda_graphs_are_planned_with_a_range() -> None:
    """2,464 MiB measured at 0.5.4 (vllm-project/vllm issue 7553); 4.7 to 16.9 GiB for a large MoE (pull
    51590).
    """
    old = settings_for(real_model("yi-34b"), real_gpu("rtx-4090"), Layout(tp=4), "vllm:0.5.4").cuda_graphs
    assert old.low_gib <= old.gib <= old.high_gib
    assert 0.5 <= old.gib <= 2.5
    assert old.high_gib >= 2464 / 1024
    new = settings_for(real_model("kimi-k3"), real_gpu("mi355x"), Layout(tp=8), "vllm:0.33.0").cuda_graphs
    assert new.low_gib <= 1.3 <= new.gib + 1e-9
    assert new.high_gib >= 16.9


def test_on_old_versions_graphs_come_on_top_of_the_budget() -> None:
    old = memory_of(real_model("llama-3.1-8b"), real_gpu("h100-sxm"), engine="vllm:0.19.0", memory_fraction=0.9)
    new = memory_of(real_model("llama-3.1-8b"), real_gpu("h100-sxm"), engine="vllm:0.21.0", memory_fraction=0.9)
    assert not old.cuda_graphs_in_budget
    assert new.cuda_graphs_in_budget
    parts = new.weights_gib + new.activation_gib + new.non_torch_gib + new.cuda_graphs_gib
    assert new.kv_cache_gib == pytest.approx(new.budget_gib - parts)


# --- input that is refused ------------------------------------------------------------------------


def _resolve(name: str, isl: int, osl: int, **serving: int) -> question.Question:
    spec, version = engine_of("vllm:0.19.0")
    workload = Workload.model_validate(
        {
            "model": name,
            "tokens": {"isl": isl, "osl": osl},
            "demand": {"requests_per_s": 1.0},
            "serving": serving,
        }
    )
    return question.question_of_workload(workload, question.service_of(workload, real_model(name), (spec, version)))


def test_lengths_beyond_the_models_positions_are_refused_with_the_limit() -> None:
    """phi-2 has 2,048 positions."""
    for isl, osl, serving in ((8000, 192, {}), (100, 100, {"max_model_len": 8192}), (2048, 1, {})):
        with pytest.raises(InputError, match="2,048"):
            _resolve("phi-2", isl, osl, **serving)
    assert _resolve("phi-2", 1848, 200).service.max_model_len == 2048
    assert _resolve("phi-2", 100, 100, max_model_len=2048).service.max_model_len == 2048


def test_a_served_length_below_the_longest_sequence_is_refused() -> None:
    with pytest.raises(InputError, match=r"serving\.max_model_len"):
        _resolve("phi-2", 1000, 200, max_model_len=1199)


def test_a_model_that_cannot_fit_is_rejected_with_the_gap_and_without_latencies() -> None:
    """405 G parameters x 2 B = 756 GiB on 79 GiB. https://github.com/ai-dynamo/aiconfigurator/pull/509"""
    asked = ask(real_model("llama-3.1-405b"), demand={"concurrency": 128}, serving={"tp": 1, "pp": 1})
    outcome = search.search(asked.with_(gpu_types=(option("h100-sxm"),), precisions=("bf16",)))
    assert outcome.best is None
    (rejected,) = outcome.refusals
    assert rejected.reason == "memory"
    assert "GiB more per GPU" in rejected.detail
    assert 0 < rejected.shortfall < math.inf


def test_what_does_not_fit_says_by_how_much() -> None:
    """An explicit verdict with the deficit, and neither a negative pool nor a silent zero."""
    used = memory_of(real_model("llama-3.1-405b"), real_gpu("h100-sxm"))
    assert not used.fits
    assert used.kv_cache_gib == 0
    assert used.max_concurrency == 0
    # weights + activation + non-torch + one sequence, less the budget
    wanted = used.weights_gib + used.activation_gib + used.non_torch_gib + used.sequence_gib
    assert used.deficit_gib == pytest.approx(wanted - used.budget_gib, rel=1e-6)


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"])
def test_a_config_without_a_needed_field_is_refused_by_its_name(tmp_path: Path, field: str) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert models.load_model(str(path)).spec.vocab_size == 128256
    path.write_text(json.dumps({k: v for k, v in config.items() if k != field}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        models.load_model(str(path))
    assert any(field in str(fault) for fault in caught.value.faults)


def test_an_unset_fraction_is_the_engine_versions_own() -> None:
    """0.90 to 0.19, 0.92 from 0.20; a value stated wins over both. vllm-project/vllm pull 38284"""
    model, gpu = real_model("llama-3.1-8b"), real_gpu("h100-sxm")
    assert settings_for(model, gpu, Layout(), "vllm:0.19.0").memory_fraction == 0.90
    assert settings_for(model, gpu, Layout(), "vllm:0.22.0").memory_fraction == 0.92
    stated = ask(model, engine="vllm:0.22.0", serving={"memory_fraction": 0.5})
    assert replica.resolve_settings(stated.service, gpu, Layout()).memory_fraction == 0.5


# --- units ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "smi_mib", "visible_gib"),
    [  # nvidia-smi totals (modal-labs/modal-client pull 2797) and what CUDA reports in engine logs
        ("h100-sxm", 81_559, 79.15),
        ("a100-sxm-80gb", 81_920, None),
        ("a100-sxm-40gb", 40_960, 39.38),
        ("a10", 23_028, None),
        ("l40s", 46_068, None),
        ("l4", 23_034, None),
        ("t4", 15_360, None),
        ("h200-sxm", None, 139.8),
        ("b200", None, 178.36),
    ],
)
def test_memory_is_what_the_card_reports(name: str, smi_mib: int | None, visible_gib: float | None) -> None:
    memory = real_gpu(name).datasheet.memory
    if smi_mib is not None:
        assert memory.nvidia_smi_mib == smi_mib
    if visible_gib is not None:
        assert memory.cuda_visible_gib == pytest.approx(visible_gib, abs=0.1)
    if memory.nvidia_smi_mib is not None:
        assert memory.cuda_visible_gib < memory.nvidia_smi_mib / 1024
    # A marketed gigabyte is 10^9 or 2^30 bytes by card; what CUDA sees is below the larger reading.
    assert memory.cuda_visible_gib < memory.marketed_gb * 1.01


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("a100-sxm-80gb", 312),
        ("a100-sxm-40gb", 312),
        ("h100-sxm", 989),
        ("gh200-96gb", 989),
        ("gh200-144gb", 989),
    ],
)
def test_peaks_are_dense_tensor_core_peaks(name: str, tflops: float) -> None:
    """Neither CUDA-core (19.5, 51.7), nor sparse (1979), nor halved twice (156); tera is 10^12, not 2^40."""
    peak = precision.peak_flops(real_gpu(name).datasheet.dense_tflops, "bf16")
    assert peak == pytest.approx(tflops * 1e12, rel=0.01)


def test_no_profile_states_a_sparse_peak() -> None:
    """FP8 runs at once or twice the 16-bit rate; a sparse figure in one column would show as four times."""
    for name in profiles.GPUS.ids:
        peaks = real_gpu(name).datasheet.dense_tflops
        if peaks.fp8 is not None and peaks.bf16 is not None:
            assert 0.99 <= peaks.fp8 / peaks.bf16 <= 2.05, name


# --- capacity and cost ----------------------------------------------------------------------------


def test_peak_rate_of_users() -> None:
    """1000 users x 10 requests / 28,800 s x 2 = 0.694 requests/s."""
    assert demand.requests_per_s(1000, 10, 8, 2.0) == pytest.approx(0.6944, abs=5e-5)


def test_replicas_are_whole_and_forgive_floating_point() -> None:
    """10 requests/s with 20 % headroom at 3 a replica: 12/3 = 4, whatever binary fractions say."""
    assert demand.replicas_for(10 * 1.2, 3) == 4
    assert demand.replicas_for(0.1 + 0.2, 0.1) == 3  # 0.30000000000000004
    assert demand.replicas_for(12.001, 3) == 5
    assert demand.replicas_for(0.001, 3) == 1
    for nothing in (0.0, -1.0):
        with pytest.raises(ValueError, match="serves nothing"):
            demand.replicas_for(10, nothing)


def test_gpus_are_replicas_times_gpus_of_a_replica() -> None:
    """13 in flight on each of 5 replicas of 8 GPUs: 65 in flight on 40 GPUs."""
    assert demand.replicas_for(65, 13) * Layout(tp=8).gpus == 40
    assert Layout(tp=2, pp=3, dp=4, ep=8).gpus == 24  # ep shares the GPUs of tp and dp


def test_gpus_over_a_trace() -> None:
    """ceil(rate/mu) x GPUs a replica at each step: rates 3, 8, 20, 1 at mu = 4 on TP2."""
    gpus = [demand.replicas_for(rate, 4.0) * Layout(tp=2).gpus for rate in (3.0, 8.0, 20.0, 1.0)]
    assert gpus == [2, 4, 10, 2]


@pytest.mark.parametrize(("utilisation", "usd"), [(1.0, 0.167), (0.5, 0.333), (0.3, 0.556)])
def test_dollars_per_million_tokens_at_a_utilisation(utilisation: float, usd: float) -> None:
    """3 $/h / (5,000 tokens/s x 3,600 s) x 10^6 = 0.1667, and 1/utilisation of it."""
    assert units.usd_per_million_tokens(3.0, 5000 * utilisation) == pytest.approx(usd, rel=0.01)


def test_a_candidate_is_never_offered_without_room_for_one_sequence() -> None:
    """Qwen3-32B in BF16 at 0.11 starts at 16,000 tokens and not at 32,000 on one H100."""
    verdicts = {}
    for length in (16_000, 32_000):
        asked = ask(
            real_model("qwen3-32b"),
            engine="vllm:0.11.0",
            isl=length - 100,
            osl=100,
            serving={"tp": 1, "pp": 1},
        )
        (verdicts[length],) = replica.candidates(asked.service, option("h100-sxm"), None)
    assert isinstance(verdicts[16_000], Replica)
    assert isinstance(verdicts[32_000], Refusal)
    assert verdicts[32_000].reason == "memory"
