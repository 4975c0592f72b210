"""What may be asked of memory: a stated cache, eager mode, offloaded weights, stages of given layers, a model without images."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sizing.answers.deployment import Resolved, deployment
from sizing.answers.memory_changes import least_fraction
from sizing.model import memory
from sizing.model.footprint import rotary_bytes
from sizing.question.ask import ask_layout
from sizing.report.memory import record, sections
from sizing.report.parts import assumptions, evidence
from sizing.specs.errors import InputError
from sizing.specs.units import GIB, MIB, parse_bytes


def deployed(**options: object) -> Resolved:
    given = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 8192, **options}
    return deployment(ask_layout(**given))


@pytest.mark.parametrize(
    ("text", "size"), [("25G", 25 * GIB), ("25GiB", 25 * GIB), ("25GB", 25e9), ("25g", 25e9), ("1000", 1000.0)]
)
def test_sizes_are_read_as_engines_do(text: str, size: float) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["25X", "G", "", "-1G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        deployed(kv_cache_bytes=text)


def test_a_stated_cache_is_the_pool_whatever_the_fraction() -> None:
    for fraction in (0.5, 0.9):
        assert deployed(kv_cache_bytes="20G", memory_fraction=fraction).memory.kv_cache_gib == 20
    beyond = deployed(kv_cache_bytes="200G").memory  # more than the card: the engine does not start
    assert beyond.kv_cache_gib < 80
    assert not beyond.fits
    assert beyond.kv_cache_gib + beyond.deficit_gib == pytest.approx(200)


def test_most_tokens_cap_the_cache() -> None:
    assert deployed(max_total_tokens=100_000).memory.kv_cache_tokens == pytest.approx(100_000, abs=16)
    whole = deployed().memory
    assert deployed(max_total_tokens=10_000_000).memory == whole


def test_eager_mode_gives_the_memory_of_graphs_to_the_cache() -> None:
    eager, graphed = deployed(enforce_eager=True).memory, deployed().memory
    assert eager.cuda_graphs_gib == 0
    assert eager.kv_cache_gib - graphed.kv_cache_gib == pytest.approx(graphed.cuda_graphs_gib)


def test_offloaded_weights_leave_the_card_and_slow_each_step() -> None:
    """4 GiB over 64 GB/s are 67 ms a step."""
    offloaded, whole = deployed(cpu_offload_gb=4.0), deployed()
    assert whole.memory.weights_gib - offloaded.memory.weights_gib == pytest.approx(4)
    assert offloaded.memory.kv_cache_gib - whole.memory.kv_cache_gib == pytest.approx(4)
    waits_us = offloaded.replica.settings.host.per_step_us - whole.replica.settings.host.per_step_us
    assert waits_us == pytest.approx(4 * GIB / 64e9 * 1e6)


def test_weights_that_are_fetched_ahead_come_beside_the_step() -> None:
    ahead, before = (deployed(cpu_offload_gb=4.0, offload_backend=way) for way in ("prefetch", "uva"))
    assert ahead.memory == before.memory
    assert ahead.replica.settings.host.per_step_us == before.replica.settings.host.per_step_us
    assert (ahead.replica.settings.host.overlapped, before.replica.settings.host.overlapped) == (True, False)
    with pytest.raises(InputError, match="has no weights to bring"):
        deployed(offload_backend="prefetch")


def test_stages_hold_the_layers_that_they_are_given() -> None:
    asked = deployed(pp_layers="20,12")
    assert [sum(count for _, count in stage.layers) for stage in asked.replica.shard.stages] == [20, 12]
    assert asked.replica.layout.pp == 2
    assert "33" not in (asked.refused or "")
    assert deployed(pp_layers="20,13").refused == "20, 13 layers are not the model's 32 over PP2"


def test_without_images_the_encoder_takes_nothing() -> None:
    seeing, reading = (deployed(model="qwen3-vl-8b", language_model_only=only).memory for only in (False, True))
    assert seeing.weights_gib - reading.weights_gib > 0.5
    assert seeing.activation_gib > reading.activation_gib


@pytest.mark.parametrize(
    ("engine", "options", "mib"),
    [
        ("vllm:0.24.0", {"gpu": "rtx-3090", "kv_precision": "fp8"}, 394),
        ("vllm:0.24.0", {"gpu": "rtx-3090"}, 0),  # FlashAttention
        ("vllm:0.24.0", {"gpu": "h100-sxm", "kv_precision": "fp8"}, 0),  # FlashAttention 3
        ("vllm:0.19.0", {"gpu": "rtx-3090", "kv_precision": "fp8"}, 0),  # taken after the pool
        # 8,192 tokens x 32 query heads x 128 x 16 B are 512 MiB.
        ("vllm:0.33.0", {"gpu": "rtx-3090", "kv_precision": "fp8", "max_num_batched_tokens": 8192}, 512),
        ("vllm:0.33.0", {"gpu": "b200", "max_num_batched_tokens": 8192}, 394),
        ("vllm:0.33.0", {"gpu": "b200", "enforce_eager": True}, 0),
    ],
)
def test_flashinfer_keeps_a_workspace_beside_the_graphs(engine: str, options: dict[str, object], mib: int) -> None:
    """https://github.com/vllm-project/vllm/blob/v0.26.0/vllm/v1/attention/backends/flashinfer.py"""
    shard = deployed(engine=engine, max_model_len=4096, max_num_seqs=16, **options).replica.shard
    without = replace(shard, settings=shard.settings.model_copy(update={"attention_workspace": None}))
    assert memory.graph_bytes(shard) - memory.graph_bytes(without) == pytest.approx(mib * MIB)


@pytest.mark.parametrize(
    ("gpus", "backend", "size"),
    [
        (8, "allgather", 0),
        (8, "high_throughput", 1024 * MIB),
        (16, "high_throughput", 2048 * MIB),  # by NVLink, and over the network
        # 256 experts, 256 tokens of 7,168 values in 16 bit and 56 scales of 4 bytes: to send, to receive, and both twice.
        (8, "low_latency", 1024 * MIB + 4 * 256 * 256 * (2 * 7168 + 56 * 4)),
    ],
)
def test_ways_to_experts_keep_buffers(gpus: int, backend: str, size: int) -> None:
    """https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/distributed/device_communicators/all2all.py"""
    asked = {"model": "deepseek-r1", "gpu": "h200-sxm", "dp": gpus, "ep": gpus}
    plain, used = (deployed(**asked, all2all_backend=way).memory for way in ("allgather", backend))
    assert (used.non_torch_gib - plain.non_torch_gib) * GIB == pytest.approx(size)


def test_fewer_sequences_capture_fewer_graphs() -> None:
    """A 27B over two RTX 5090 with 16 sequences logs 0.13 GiB. https://github.com/noonghunna/club-3090/issues/1087"""
    few = deployed(model="qwen3.6-27b", gpu="rtx-5090", tp=2, precision="fp8", engine="vllm:0.24.0", max_num_seqs=16)
    assert few.memory.cuda_graphs_gib == pytest.approx(0.13, abs=0.02)


def test_the_least_fraction_is_the_least() -> None:
    least, more = (least_fraction(deployed(), sequences) for sequences in (1, 20))
    assert least is not None and more is not None
    assert more[0] - least[0] == pytest.approx(19 / 79.19, abs=0.002)
    assert least_fraction(deployed(), 1000) is None


@pytest.mark.parametrize(
    ("gpu", "tp", "gib"),
    [("rtx-3090", 2, 0.3), ("a100-pcie-80gb", 2, 0.3), ("h100-sxm", 2, 2.1), ("rtx-3090", 1, 0.25)],
)
def test_what_lies_outside_depends_on_the_link(gpu: str, tp: int, gib: float) -> None:
    assert deployed(gpu=gpu, tp=tp, engine="vllm:0.24.0").memory.non_torch_gib == gib


def test_a_long_context_is_chunked_by_v0_itself() -> None:
    """From 0.5.3 above 32,768 tokens. https://github.com/vllm-project/vllm/blob/v0.7.3/vllm/engine/arg_utils.py"""
    long, short = (deployed(engine="vllm:0.7.2", max_model_len=tokens).replica.settings for tokens in (131_072, 32_768))
    assert (long.max_num_batched_tokens, long.chunked_prefill) == (2048, True)
    assert (short.max_num_batched_tokens, short.chunked_prefill) == (32_768, False)


@pytest.mark.parametrize(
    ("version", "gpu", "gib"),
    [("0.10.1", "h100-sxm", 65.97), ("0.11.0", "h100-sxm", 64.38), ("0.33.0", "a100-sxm-80gb", 65.97)],
)
def test_mxfp4_is_padded_as_the_kernel_does(version: str, gpu: str, gib: float) -> None:
    """Marlin pads 2880 to 2944 and 3072; Triton swizzles. Logs: https://github.com/vllm-project/vllm/issues/23278 and 33155."""
    used = deployed(model="gpt-oss-120b", gpu=gpu, engine=f"vllm:{version}").memory
    assert used.weights_gib == pytest.approx(gib, rel=0.005)


@pytest.mark.parametrize(
    ("limit", "profiled", "loaded"),
    [
        ('{"image": 0, "video": 0}', False, False),
        ("image=0", False, True),
        ('{"image": {"count": 1, "width": 512, "height": 512}}', True, True),
    ],
)
def test_images_may_be_limited(limit: str, profiled: bool, loaded: bool) -> None:
    """`--limit-mm-per-prompt`: none at all leaves the tower out, a size bounds what the profile run encodes."""
    free, bound = (
        deployed(model="qwen3-vl-8b", max_num_seqs=8, **given).memory for given in ({}, {"limit_mm_per_prompt": limit})
    )
    assert (bound.weights_gib == free.weights_gib) is loaded
    assert bound.activation_gib < free.activation_gib
    assert profiled or bound.activation_gib < 1


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"max_model_len": 128000}, 7 * 16384),
        ({"max_model_len": 40000}, 2 * 16384),
        ({"max_model_len": 4096}, 16384),
        ({"max_model_len": 128000, "limit_mm_per_prompt": "image=0"}, 7 * 16384),
        ({"limit_mm_per_prompt": "video=0"}, 16384),
        ({"limit_mm_per_prompt": '{"image": {"count": 1, "width": 280, "height": 280}, "video": 0}'}, 100),
    ],
)
def test_a_profile_run_encodes_the_longest_video_that_a_prompt_holds(asked: dict[str, object], tokens: int) -> None:
    """vLLM says of Qwen2.5-VL at 128,000 positions: {'image': 16384, 'video': 114688}, of 14 frames, two to a patch."""
    vision = deployed(model="qwen2.5-vl-7b", **asked).replica.shard.model.vision
    assert vision is not None and vision.largest_tokens == tokens
    assert vision.largest_patches == 4 * tokens


@pytest.mark.parametrize(("engine", "parts"), [("vllm:0.24.0", 4), ("sglang:0.5.9", 4), ("tensorrt-llm", 1)])
def test_an_encoder_of_images_is_split_as_the_engine_does(engine: str, parts: int) -> None:
    asked: dict[str, object] = {"model": "qwen2.5-vl-72b", "gpu": "h200-sxm", "tp": 4, "engine": engine}
    whole, text = deployed(**asked), deployed(**asked, language_model_only=True)
    tower = whole.replica.shard.model.vision_parameters * 2 / GIB
    assert whole.memory.weights_gib - text.memory.weights_gib == pytest.approx(tower / parts)


@pytest.mark.parametrize("limit", ["x", "{", '{"image": "many"}', "image"])
def test_what_is_no_limit_of_images_is_refused(limit: str) -> None:
    with pytest.raises(InputError):
        deployed(model="qwen3-vl-8b", limit_mm_per_prompt=limit)


def test_sglang_takes_the_share_or_the_number_of_states() -> None:
    asked = {"model": "qwen3.5-27b", "gpu": "h200-sxm", "engine": "sglang:0.5.9", "precision": "fp8"}
    usual, small, few = (
        deployed(**asked, **more).memory
        for more in ({}, {"mamba_full_memory_ratio": 0.2}, {"max_mamba_cache_size": 30})
    )
    assert usual.state_cache_gib / usual.kv_cache_gib == pytest.approx(0.9)
    assert small.state_cache_gib / small.kv_cache_gib == pytest.approx(0.2)
    assert few.most_num_seqs == 10
    assert few.kv_cache_gib + few.state_cache_gib == pytest.approx(usual.kv_cache_gib + usual.state_cache_gib)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"enforce_eager": True, "cuda_graphs_gib": 1.0}, "contradicts --enforce-eager"),
        ({"language_model_only": True}, "no encoder of images"),
        ({"limit_mm_per_prompt": "image=0"}, "no encoder of images"),
        ({"max_mamba_cache_size": 5, "engine": "sglang"}, "no recurrent states"),
        ({"model": "qwen3.6-27b", "mamba_full_memory_ratio": 0.5}, "no pool of their own"),
        ({"model": "qwen3-vl-8b", "limit_mm_per_prompt": "video=1"}, "videos and sound are not modelled"),
        ({"model": "qwen3-vl-8b", "limit_mm_per_prompt": "smell=1"}, "no modality"),
    ],
)
def test_what_has_nothing_to_act_on_is_refused(asked: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        deployed(**asked)


def test_no_more_weights_leave_the_card_than_its_layers_have() -> None:
    """Embedding and head stay, 2 x 128,256 x 4,096 values in 16 bit, with the final norm and the rotary tables."""
    more, most = deployed(cpu_offload_gb=40.0), deployed(cpu_offload_gb=16.0)
    kept = 2 * 128_256 * 4096 * 2 + rotary_bytes(more.replica.service.model) + 2 * 4096
    assert (more.refused, more.memory.weights_gib * GIB) == (None, pytest.approx(kept))
    assert more.replica.settings.host == most.replica.settings.host  # no step waits for weights that do not exist
    assert more.memory == most.memory
    told = [each.what for each in record(more).assumptions]
    assert "the weights of all layers of a GPU stay in host memory, fewer than the stated 40 GiB" in told
    assert not any("host memory" in each.what for each in record(deployed(cpu_offload_gb=12.9)).assumptions)


def test_too_few_stated_states_are_named_and_a_larger_number_is_proposed() -> None:
    asked = {"model": "qwen3.5-27b", "engine": "sglang", "max_model_len": 1024}
    one = record(deployed(**asked, max_mamba_cache_size=2))
    assert one.reason == "does not fit: one sequence, where --max-mamba-cache-size 2 has recurrent states for 0"
    assert one.suggestions[0] == "--max-mamba-cache-size 5"
    many = record(deployed(**asked, max_mamba_cache_size=5), 30)
    assert many.reason == "does not fit: 30 sequences, where --max-mamba-cache-size 5 has recurrent states for 1"
    assert all("--max-mamba-cache-size 150" in each for each in many.suggestions)
    assert record(deployed(**asked, tp=2, max_mamba_cache_size=150, max_num_seqs=30), 30).fits


def test_a_refused_layout_does_not_start_and_has_no_picture() -> None:
    refused = record(deployed(model="qwen3-1.7b", tp=3))
    assert (refused.fits, refused.memory.starts) == (False, False)
    assert refused.refused == "16 attention heads are not divisible by TP3"
    written = [type(each).__name__ for each in sections(refused)]
    assert "Whole" not in written
    assert "Whole" in [type(each).__name__ for each in sections(record(deployed()))]


PHI = "phi-3.5-mini"


@pytest.mark.parametrize(
    ("engine", "stated", "longest"),
    [
        ("vllm:0.11.0", None, 131_072),
        ("vllm:0.11.1", None, 4096),
        ("vllm:0.33.0", 32_768, 32_768),
        ("sglang", None, 131_072),
    ],
)
def test_a_length_that_nobody_states_is_the_engine_s_own(engine: str, stated: int | None, longest: int) -> None:
    """LongRoPE: https://github.com/vllm-project/vllm/blob/v0.11.1/vllm/config/model.py"""
    assert deployed(model=PHI, gpu="l40s", engine=engine, max_model_len=stated).memory.max_model_len == longest
    assert deployed(model="llama-3.1-8b", gpu="h100-sxm", engine=engine, max_model_len=stated).memory.max_model_len in (
        131_072,
        stated,
    )


@pytest.mark.parametrize(("version", "kind"), [("0.24.0", "datasheet"), ("0.30.0", "derived"), ("0.33.0", "datasheet")])
def test_pages_of_a_compressed_cache_say_what_they_rest_on(version: str, kind: str) -> None:
    asked = {
        "model": "deepseek-v4-flash",
        "gpu": "b300",
        "tp": 8,
        "engine": f"vllm:{version}",
        "max_model_len": 131_072,
    }
    found = deployed(**asked)
    (one,) = [each for each in assumptions.of_memory(found.question, found.replica) if each.what.endswith("compressed")]
    assert one.kind == kind


def test_a_range_says_whose_logs_it_is_of() -> None:
    """Too few logs are of cards on PCIe, so the range of their memory is of all kinds."""
    here, there = (
        record(deployed(model="llama-3.1-8b", gpu=gpu, tp=tp, max_model_len=8192)).bands_of
        for gpu, tp in (("h100-sxm", 1), ("rtx-4090", 2))
    )
    assert (here, there) == ("engine logs like this", evidence.ALL_LOGS)


@pytest.mark.parametrize(
    ("engine", "gpu", "runs"),
    [
        ("vllm:0.33.0", "v100-sxm2-32gb", False),
        ("vllm:0.33.0", "t4", True),
        ("vllm:0.12.0", "t4", False),
        ("vllm:0.12.0", "a100-sxm-80gb", True),
        ("vllm:0.33.0", "mi300x", True),
        ("sglang:0.5.9", "t4", False),
        ("sglang:0.5.9", "rtx-3090", True),
    ],
)
def test_weights_in_fp8_need_marlin_or_native_products(engine: str, gpu: str, runs: bool) -> None:
    """Marlin needs compute capability 7.5 in vLLM 0.33, 8.0 before and in SGLang."""
    narrow, narrower = (deployed(gpu=gpu, engine=engine, precision=name).refused for name in ("fp8", "int4"))
    assert (narrow is None) == runs and narrower is None
    assert narrow is None or "has no kernels for FP8 weights" in narrow


@pytest.mark.parametrize(
    ("model", "last", "first"),
    [
        ("gpt-oss-20b", "vllm:0.10.0", "vllm:0.10.1"),
        ("deepseek-v4-flash", "vllm:0.19.1", "vllm:0.20.0"),
        ("deepseek-v4-flash", "sglang:0.5.11", "sglang:0.5.12"),
        ("deepseek-v3.2", "vllm:0.10.2", "vllm:0.11.0"),
    ],
)
def test_a_version_that_does_not_know_a_model_yet_refuses_it(model: str, last: str, first: str) -> None:
    before, since = (deployed(model=model, gpu="b200", tp=8, engine=engine).refused for engine in (last, first))
    assert before is not None and since is None


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3.5-9b"])
@pytest.mark.parametrize("engine", ["vllm:0.33.0", "vllm:0.9.2", "sglang", "tensorrt-llm"])
def test_the_formula_of_the_cache_gives_the_cache(engine: str, model: str) -> None:
    """The formula that --explain shows, of the values beside it."""
    found = record(deployed(engine=engine, model=model, max_num_seqs=64), explained=True)
    (pool,) = (each for each in found.explanations if each.what == "KV cache")
    values = dict(part.split() for part in pool.inputs.split(", "))
    computed = eval(pool.formula.split(";")[0], {name: float(value) for name, value in values.items()})
    assert computed == pytest.approx(found.memory.kv_cache_gib, abs=0.03)


def test_the_formula_of_a_cache_that_is_stated_or_bounded_says_so() -> None:
    stated, bounded = (
        next(each for each in record(deployed(**asked), explained=True).explanations if each.what == "KV cache")
        for asked in ({"kv_cache_bytes": "20G"}, {"max_total_tokens": 50_000})
    )
    assert stated.formula.startswith("as stated")
    assert bounded.formula.endswith("at most the 50,000 tokens of --max-total-tokens")


def test_a_limit_of_each_microbatch_is_suggested_as_such() -> None:
    """TensorRT-LLM counts the sequences of one microbatch: of two stages, 4 run 8 sequences at once, and 9 take 5."""
    asked = {"engine": "tensorrt-llm", "pp": 2, "max_model_len": 8192, "max_num_seqs": 4}
    assert record(deployed(**asked), 8).fits
    assert record(deployed(**asked), 9).suggestions[0] == "--max-num-seqs 5"
