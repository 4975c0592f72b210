"""Defaults of each engine by version and GPU, as its source states them."""

from __future__ import annotations

import pytest
from engine_profiles import CARDS, ENGINES, FILES, SGLANG, TENSORRT_LLM, VLLM, boundaries, on

from sizing.model.memory import static_fraction
from sizing.model.settings import SettingsConditions, is_within, resolve
from sizing.specs.engine import Engine, GraphSizes, MemoryReserve


def sizes(graphs: GraphSizes) -> set[int]:
    """The captured sizes, as `GraphSizes` defines them."""
    steps = range(graphs.step, min(graphs.step_until, graphs.most) + 1, graphs.step)
    wide = range(graphs.step_until + graphs.wide_step, graphs.most + 1, graphs.wide_step)
    return {*graphs.head, *(size for size in steps if size > max(graphs.head)), *wide}


# --- vLLM -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "fraction", "graphs_in_budget"),
    [("0.4.0", 0.90, False), ("0.12.0", 0.90, False), ("0.19.1", 0.90, False), ("0.20.2", 0.92, True)],
)
def test_vllm_fraction_and_graphs_change_together_at_0_20(
    version: str, fraction: float, graphs_in_budget: bool
) -> None:
    settings = resolve(VLLM, version, on("H100 SXM 80GB"))
    assert (settings.memory_fraction, settings.graphs_in_budget) == (fraction, graphs_in_budget)


@pytest.mark.parametrize(
    ("version", "gpu", "sequences", "tokens"),
    [
        ("0.5.5", "H100 SXM 80GB", 256, 2048),
        ("0.7.3", "A100 SXM 80GB", 256, 2048),
        ("0.8.1", "A100 SXM 80GB", 1024, 2048),
        ("0.8.3", "H100 SXM 80GB", 1024, 8192),
        ("0.8.4", "A100 SXM 80GB", 256, 2048),
        ("0.8.4", "H200 SXM 141GB", 1024, 8192),
        ("0.8.5", "A100 SXM 80GB", 1024, 8192),
        ("0.8.5.post1", "L40S 48GB", 256, 2048),
        ("0.9.0", "A100 SXM 80GB", 256, 2048),
        ("0.19.0", "H100 SXM 80GB", 1024, 8192),
        ("0.27.0", "B200 SXM 180GB", 1024, 8192),
        ("0.28.0", "B200 SXM 180GB", 1024, 16384),
        ("0.33.0", "B200 SXM 180GB", 1024, 16384),
        ("0.33.0", "H200 SXM 141GB", 1024, 8192),
        ("0.33.0", "A100 SXM 80GB", 256, 2048),
        ("0.33.0", "RTX 4090", 256, 2048),
    ],
)
def test_vllm_sizes_of_the_server(version: str, gpu: str, sequences: int, tokens: int) -> None:
    settings = resolve(VLLM, version, on(gpu))
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (sequences, tokens)


def test_vllm_engines_differ_between_0_7_and_0_8() -> None:
    old, new = (resolve(VLLM, version, on("H100 SXM 80GB")) for version in ("0.7.3", "0.8.0"))
    assert (old.step_order, new.step_order) == ("prefill_first", "mixed")
    assert (old.chunked_prefill, new.chunked_prefill) == (False, True)
    assert (old.prefix_caching, new.prefix_caching) == (False, True)
    assert (old.pp_remainder, new.pp_remainder) == ("last", "before_last")
    assert (old.blocks_lost, new.blocks_lost) == (0, 1)
    assert (old.budget_covers_context, new.budget_covers_context) == (True, False)


@pytest.mark.parametrize(
    ("version", "largest", "captured", "absent"),
    [
        ("0.6.6", 256, {1, 2, 4, 8, 248, 256}, {3, 12, 264}),
        ("0.9.2", 512, {264, 504, 512}, {520}),
        ("0.12.0", 512, {8, 240, 248, 256, 272, 496, 512}, {264, 504}),
        ("0.27.0", 512, {8, 512}, {528}),
        ("0.28.0", 1024, {512, 528, 1024}, {264, 1040}),
        ("0.33.0", 1024, {512, 528, 1024}, {264, 1040}),
    ],
)
def test_vllm_graph_sizes_on_b200(version: str, largest: int, captured: set[int], absent: set[int]) -> None:
    graphs = resolve(VLLM, version, on("B200 SXM 180GB")).graph_sizes
    assert graphs is not None
    assert max(sizes(graphs)) == largest
    assert captured <= sizes(graphs)
    assert not absent & sizes(graphs)


@pytest.mark.parametrize(
    ("version", "rows", "vocabulary", "hidden", "logged_gib"),
    [
        # rows x vocabulary x bytes + 8192 x hidden x 2, all logged on H100:
        # 0.11: 1024 x 151936 x 38.4 + 8192 x 1024 x 2 = 5.974e9 + 0.017e9 B = 5.58 GiB
        ("0.11.0", 1024, 151_936, 1024, 5.56),  # Qwen3-0.6B
        ("0.11.0", 1024, 151_936, 5120, 5.64),  # Qwen3-32B
        ("0.11.0", 1024, 128_256, 8192, 4.84),  # Llama-3.3-70B FP8
        ("0.11.0", 1024, 201_088, 2880, 7.38),  # gpt-oss-20b
        ("0.16.0", 1024, 151_936, 5120, 5.64),  # Qwen3-14B
        ("0.6.6", 256, 128_256, 4096, 1.26),  # Llama-3-8B
        # 0.17: 1024 x 151936 x 14.9 + 8192 x 5120 x 2 = 2.318e9 + 0.084e9 B = 2.24 GiB
        ("0.17.0", 1024, 151_936, 5120, 2.23),  # Qwen3-14B
        ("0.19.0", 1024, 128_256, 4096, 1.89),  # Llama-3.1-8B
        ("0.19.0", 1024, 152_064, 8192, 2.29),  # Qwen2.5-72B
    ],
)
def test_vllm_sampler_reproduces_the_logged_activation(
    version: str, rows: int, vocabulary: int, hidden: int, logged_gib: float
) -> None:
    settings = resolve(VLLM, version, on("H100 SXM 80GB"))
    assert settings.max_num_seqs == rows
    peak = rows * vocabulary * settings.sampler_bytes_per_logit + 8192 * hidden * 2
    assert peak / 2**30 == pytest.approx(logged_gib, rel=0.02)


@pytest.mark.parametrize(
    ("hidden", "intermediate", "logged_gib"),
    # 8192 x (4 x 4096 + 9 x 14336) = 1.191e9 B = 1.109 GiB
    # 8192 x (4 x 4096 + 9 x 12288) = 1.040e9 B = 0.969 GiB
    [(4096, 14_336, 1.10), (4096, 12_288, 0.96)],
)
def test_vllm_forward_reproduces_the_logged_activation_of_stages_without_sampler(
    hidden: int, intermediate: int, logged_gib: float
) -> None:
    rule = resolve(VLLM, "0.19.0", on("H100 SXM 80GB", pp=2)).forward_activation
    peak = 8192 * (rule.per_hidden_bytes * hidden + rule.per_intermediate_bytes * intermediate)
    assert peak / 2**30 == pytest.approx(logged_gib, rel=0.02)


@pytest.mark.parametrize(
    ("version", "tp", "pp", "logged_gib"),
    [
        ("0.11.0", 1, 1, 0.13),
        ("0.17.1", 1, 1, 0.13),
        ("0.11.0", 2, 1, 0.55),
        ("0.18.0", 1, 1, 0.25),
        ("0.19.0", 2, 1, 2.10),
        ("0.19.0", 1, 3, 0.07),
    ],
)
def test_vllm_non_torch_memory(version: str, tp: int, pp: int, logged_gib: float) -> None:
    assert resolve(VLLM, version, on("H100 SXM 80GB", tp, pp)).non_torch_gib == logged_gib


def test_vllm_blocks_by_attention_and_gpu() -> None:
    assert resolve(VLLM, "0.19.0", on("H100 SXM 80GB")).block_tokens == 16
    assert resolve(VLLM, "0.19.0", on("H100 SXM 80GB", attention="mla")).block_tokens == 64
    assert resolve(VLLM, "0.12.0", on("B200 SXM 180GB", attention="mla")).block_tokens == 128
    assert resolve(VLLM, "0.19.0", on("A100 SXM 80GB", attention="mla")).block_tokens == 16


def test_vllm_host_time_is_hidden_from_0_14_where_scheduling_is_asynchronous() -> None:
    h100 = "H100 SXM 80GB"
    assert not resolve(VLLM, "0.13.0", on(h100)).host.overlapped
    assert resolve(VLLM, "0.14.0", on(h100)).host.overlapped
    assert not resolve(VLLM, "0.14.0", on(h100, pp=2)).host.overlapped
    assert resolve(VLLM, "0.33.0", on(h100, pp=2)).host.overlapped


@pytest.mark.parametrize("engine", ENGINES.values(), ids=FILES)
def test_fp8_attention_needs_hopper_or_datacentre_blackwell(engine: Engine) -> None:
    newest = {gpu: resolve(engine, engine.newest, on(gpu)).fp8_attention for gpu in CARDS}
    assert {gpu for gpu, fp8 in newest.items() if fp8} == {
        "H100 SXM 80GB",
        "H200 SXM 141GB",
        "B200 SXM 180GB",
    }
    assert not any(resolve(engine, engine.oldest, on(gpu)).fp8_attention for gpu in CARDS)


def test_mxfp4_experts_on_blackwell_multiply_in_each_engines_own_precision() -> None:
    b200 = on("B200 SXM 180GB")
    assert {stem: resolve(engine, engine.newest, b200).fp4_activation for stem, engine in ENGINES.items()} == {
        "vllm": "bf16",
        "sglang": "fp8",
        "tensorrt-llm": "fp8",
    }


# --- SGLang ---------------------------------------------------------------------------------------

FRACTIONS = [
    # GPU, tp, fraction at 0.4.6.post5, 0.5.2, 0.5.9, 0.5.13, 0.5.23
    # H100, tp 1, 0.5.9: 512 + 1.5 x 8192 + 2 x 256 + 128 = 13440 MiB of 81559, so 0.835
    # ... 0.5.13: and 58 prefill sizes x 8 = 464, so 13904 MiB, 0.830
    ("RTX 4090", 1, 0.880, 0.879, 0.847, 0.833, 0.704),
    ("L40S 48GB", 1, 0.880, 0.778, 0.851, 0.843, 0.843),
    ("H100 SXM 80GB", 1, 0.880, 0.874, 0.835, 0.830, 0.830),
    ("H100 SXM 80GB", 8, 0.810, 0.831, 0.818, 0.812, 0.812),
    ("H200 SXM 141GB", 1, 0.872, 0.911, 0.907, 0.903, 0.903),
    ("H200 SXM 141GB", 8, 0.872, 0.886, 0.897, 0.893, 0.893),
    ("B200 SXM 180GB", 8, 0.899, 0.821, 0.852, 0.849, 0.849),
]

FRACTION_CASES = [
    (version, gpu, tp, fraction)
    for gpu, tp, *row in FRACTIONS
    for version, fraction in zip(("0.4.6.post5", "0.5.2", "0.5.9", "0.5.13", "0.5.23"), row, strict=True)
]


def fraction_of(version: str, deployment: SettingsConditions) -> float:
    settings = resolve(SGLANG, version, deployment)
    if settings.memory_fraction is not None:
        return settings.memory_fraction
    assert settings.reserve is not None and settings.graph_sizes is not None
    return static_fraction(
        settings.reserve,
        deployment.memory_gib * 1024,
        settings.max_num_batched_tokens,
        settings.graph_sizes.most,
        deployment.tp * deployment.pp,
        deployment.attention == "mla",
    )


@pytest.mark.parametrize(("version", "gpu", "tp", "fraction"), FRACTION_CASES)
def test_sglang_static_fraction(version: str, gpu: str, tp: int, fraction: float) -> None:
    assert fraction_of(version, on(gpu, tp)) == fraction


def test_sglang_0_5_4_captures_16_sequences_on_a_4090() -> None:
    # 512 + 1.5 x 2048 + 2 x 16 + 128 = 3744 MiB of 24564, so 0.848 instead of 0.847 with 24
    assert fraction_of("0.5.4", on("RTX 4090")) == 0.848


@pytest.mark.parametrize(("tp", "fraction"), [(1, 0.88), (2, 0.87), (4, 0.85), (8, 0.81), (16, 0.79)])
def test_sglang_0_4_0_fraction_follows_tp_alone(tp: int, fraction: float) -> None:
    assert {fraction_of("0.4.0", on(gpu, tp)) for gpu in CARDS} == {fraction}


def test_sglang_on_amd_has_no_prefill_graphs() -> None:
    # A log of one 288 GiB card says 0.911: 512 + 1.5 x 16384 + 2 x 512 + 128 = 26240 MiB of 294912.
    assert fraction_of("0.5.16", on("MI355X 288GB")) == 0.911


def test_sglang_pipeline_stages_have_no_prefill_graphs() -> None:
    # 512 + 12288 + 512 + 2 x 128 = 13568 MiB of 81559
    assert fraction_of("0.5.23", on("H100 SXM 80GB", pp=2)) == 0.834


def test_sglang_latent_attention_reserves_1536_mib_for_prefill_graphs() -> None:
    # 512 + 12288 + 2 x 512 + 8 x 128 + 1536 = 16384 MiB of 143771
    assert fraction_of("0.5.9", on("H200 SXM 141GB", 8, attention="mla")) == 0.897
    assert fraction_of("0.5.23", on("H200 SXM 141GB", 8, attention="mla")) == 0.886


@pytest.mark.parametrize("gpu", [gpu for gpu, (word, _) in CARDS.items() if not word.startswith("cdna")])
@pytest.mark.parametrize("version", ["0.5.10", "0.5.19", "0.5.23"])
def test_sglang_prefill_graph_reserve_is_8_mib_a_size_up_to_the_chunk(version: str, gpu: str) -> None:
    settings = resolve(SGLANG, version, on(gpu))
    ladder = [
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, 2**15, 512),
    ]
    captured = sum(size <= settings.max_num_batched_tokens for size in ladder)
    assert isinstance(settings.reserve, MemoryReserve)
    assert settings.reserve.prefill_graphs_mib == 8 * captured


@pytest.mark.parametrize(
    ("version", "gpu", "chunk_tokens"),
    [
        ("0.4.0", "RTX 4090", 2048),
        ("0.4.6.post5", "A100 SXM 40GB", 8192),
        ("0.4.6.post5", "B200 SXM 180GB", 8192),
        ("0.5.2", "L40S 48GB", 8192),
        ("0.5.2", "B200 SXM 180GB", 16384),
        ("0.5.3", "L40S 48GB", 4096),
        ("0.5.19", "RTX 4090", 2048),
        ("0.5.23", "RTX 4090", 4096),
        ("0.5.23", "T4 16GB", 2048),
        ("0.5.23", "H200 SXM 141GB", 8192),
    ],
)
def test_sglang_chunk_size(version: str, gpu: str, chunk_tokens: int) -> None:
    assert resolve(SGLANG, version, on(gpu)).max_num_batched_tokens == chunk_tokens


@pytest.mark.parametrize(
    ("version", "gpu", "tp", "most"),
    [
        ("0.4.0", "RTX 4090", 8, 8),
        ("0.4.0", "H100 SXM 80GB", 1, 160),
        ("0.4.6.post5", "RTX 4090", 4, 80),
        ("0.4.6.post5", "H200 SXM 141GB", 1, 256),
        ("0.5.2", "H100 SXM 80GB", 8, 160),
        ("0.5.2", "B200 SXM 180GB", 1, 512),
        ("0.5.3", "H100 SXM 80GB", 2, 256),
        ("0.5.3", "H100 SXM 80GB", 4, 512),
        ("0.5.9", "L40S 48GB", 1, 32),
        ("0.5.9", "L40S 48GB", 4, 160),
        ("0.5.9", "B200 SXM 180GB", 1, 512),
        ("0.5.23", "RTX 4090", 1, 48),
        ("0.5.23", "RTX 4090", 4, 160),
    ],
)
def test_sglang_largest_decode_graph(version: str, gpu: str, tp: int, most: int) -> None:
    graphs = resolve(SGLANG, version, on(gpu, tp)).graph_sizes
    assert graphs is not None
    assert max(sizes(graphs)) == graphs.most == most


def test_sglang_graph_sizes_step_wider_above_256() -> None:
    graphs = resolve(SGLANG, "0.5.9", on("B200 SXM 180GB")).graph_sizes
    assert graphs is not None
    assert {1, 2, 4, 8, 12, 16, 24, 248, 256, 272, 496, 512} <= sizes(graphs)
    assert not {20, 264} & sizes(graphs)


def test_sglang_pages_are_64_tokens_on_datacentre_blackwell_only() -> None:
    pages = {gpu: resolve(SGLANG, "0.5.23", on(gpu)).block_tokens for gpu in CARDS}
    assert {gpu for gpu, page in pages.items() if page == 64} == {"B200 SXM 180GB"}
    assert resolve(SGLANG, "0.5.2", on("B200 SXM 180GB")).block_tokens == 1


# --- TensorRT-LLM ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "block", "reuse", "graphs", "overlapped", "remainder"),
    [
        ("0.9.0", 128, False, False, False, "must_divide"),
        ("0.10.0", 64, False, False, False, "must_divide"),
        ("0.21", 64, False, False, False, "must_divide"),
        ("1.0.0rc3", 32, True, True, True, "head"),
        ("1.4.0rc4", 32, True, True, True, "head"),
    ],
)
def test_tensorrt_llm_by_version(
    version: str, block: int, reuse: bool, graphs: bool, overlapped: bool, remainder: str
) -> None:
    settings = resolve(TENSORRT_LLM, version, on("H100 SXM 80GB"))
    assert settings.block_tokens == block
    assert settings.prefix_caching is reuse
    assert (settings.graph_sizes is not None) is settings.graphs_in_budget is graphs
    assert settings.host.overlapped is overlapped
    assert settings.pp_remainder == remainder


def test_tensorrt_llm_never_evicts_and_takes_nine_tenths_of_what_is_left() -> None:
    for version in boundaries(TENSORRT_LLM):
        settings = resolve(TENSORRT_LLM, version, on("H100 SXM 80GB"))
        assert (settings.pool_rule, settings.memory_fraction) == ("free_after_load", 0.9)
        assert (settings.admission, settings.preemption) == ("reserve", "never")
        unset = is_within(version, "0.5.0", "0.10")  # built for a batch of longest inputs
        assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (2048, 32768 if unset else 8192)
