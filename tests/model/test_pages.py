"""Hybrid models: blocks, groups and states by the rules of their engines, against worked numbers and logs."""

from __future__ import annotations

import json
import math

import pytest
from builders import real_model

from sizing.answers.deployment import Resolved, deployment, running
from sizing.cli.main import run as run_command
from sizing.model import footprint, memory
from sizing.question.ask import ask_layout
from sizing.replica.replica import lowered_from
from sizing.specs.model import SlidingWindowAttention
from sizing.specs.units import GIB


def deployed(**options: object) -> Resolved:
    return deployment(ask_layout(**options))


def cut(**options: object) -> footprint.Pages:
    shard = deployed(**options).replica.shard
    found = footprint.pages(shard, shard.stages[0])
    assert found is not None
    return found


def test_a_state_of_27b_takes_784_tokens_of_a_block() -> None:
    """10,240 x 3 x 2 B of convolution and 48 x 128 x 128 x 4 B of state are 3,207,168 B; 4,096 B a token, in sixteens.
    https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/layers/mamba/mamba_utils.py
    """
    found = cut(model="qwen3.5-27b", gpu="h100-sxm", engine="vllm:0.20.0")
    assert footprint.state_bytes(deployed(model="qwen3.5-27b", gpu="h100-sxm").replica.shard, whole("qwen3.5-27b")) == (
        48 * 3_207_168
    )
    assert (found.block_tokens, found.growing, found.state_groups) == (784, 1, 3)
    assert found.block_bytes == 16 * 784 * 4096


def whole(name: str):  # type: ignore[no-untyped-def]
    from sizing.model.architecture import whole

    return whole(real_model(name))


def test_latent_attention_aligns_to_64_tokens() -> None:
    """Kimi-Linear over two GPUs: 1,085,440 B of state, 1,152 B a token: 960 tokens, 7 layers a group, 128 blocks of 120,000
    tokens. https://github.com/vllm-project/vllm/issues/28228
    """
    found = cut(model="kimi-linear-48b-a3b", gpu="rtx-3090", tp=2, engine="vllm:0.11.0", precision="int4")
    assert (found.block_tokens, found.growing, found.state_groups, found.states) == (960, 1, 3, 1)
    assert found.blocks(125) == 128
    assert found.blocks(125) * found.block_bytes / GIB == pytest.approx(0.923, abs=0.001)


def test_an_fp8_cache_doubles_the_block() -> None:
    sixteen, eight = (
        cut(model="qwen3.5-27b", gpu="h100-sxm", engine="vllm:0.20.0", kv_precision=kv) for kv in ("auto", "fp8")
    )
    assert eight.block_tokens == 2 * sixteen.block_tokens


@pytest.mark.parametrize(
    ("version", "speculative", "caching", "states"),
    [
        ("0.11.0", None, None, 1),
        ("0.12.0", None, None, 1),
        ("0.12.0", None, True, None),
        ("0.20.0", None, None, 1),
        ("0.20.0", "mtp:3", None, 4),
        ("0.24.0", "mtp:3", True, 5),
        ("0.26.0", None, None, 2),
        ("0.26.0", None, False, 1),
    ],
)
def test_states_of_a_request(version: str, speculative: str | None, caching: bool | None, states: int | None) -> None:
    """One, and one a drafted token; two with prefix caching, which is on by itself from 0.26.0.
    https://github.com/vllm-project/vllm/blob/v0.20.0/vllm/v1/kv_cache_interface.py
    """
    options = {"speculative": speculative, "prefix_caching": caching}
    given = {name: value for name, value in options.items() if value is not None}
    assert cut(model="qwen3.5-27b", gpu="h200-sxm", engine=f"vllm:{version}", **given).states == states


def test_drafting_layers_share_the_groups_of_attention() -> None:
    """16 layers of attention and one of the module: 17 a group, so 48 layers of states make three."""
    found = cut(
        model="qwen3.6-27b",
        gpu="rtx-3090",
        tp=2,
        engine="vllm:0.24.0",
        kv_precision="fp8",
        speculative="mtp:3",
        prefix_caching=True,
    )
    assert (found.block_tokens, found.growing, found.state_groups) == (1600, 1, 3)
    assert found.block_bytes == 17 * 1600 * 1024
    assert found.blocks(164) == 179


@pytest.mark.parametrize(
    ("model", "engine", "full", "windowed"),
    [
        ("gemma-3-27b", "vllm:0.24.0", 10, 60),  # 52 windowed layers fill six groups of ten
        ("gemma-3-1b", "vllm:0.24.0", 4, 24),  # 22 fill six of four
        ("gemma-3-12b", "vllm:0.24.0", 8, 40),
        ("gemma-2-27b", "vllm:0.24.0", 23, 23),
        ("gemma-3-27b", "vllm:0.9.1", 10, 60),
        ("gemma-3-27b", "tensorrt-llm", 62, 0),  # no layer is cut to its window unless max_attention_window is set
    ],
)
def test_groups_of_windowed_layers_are_filled_up(model: str, engine: str, full: int, windowed: int) -> None:
    """vLLM logs "Add k padding layers": https://github.com/vllm-project/vllm/blob/v0.24.0/vllm/v1/core/kv_cache_utils.py"""
    found = deployed(model=model, gpu="h200-sxm", engine=engine, max_model_len=8192, max_num_batched_tokens=2048)
    shard = found.replica.shard
    block, spec = shard.settings.block_tokens, found.replica.shard.cache(0)
    window = next(kind.mixer.window for kind in shard.model.kinds if isinstance(kind.mixer, SlidingWindowAttention))
    kept = min(8192, math.ceil((window - 1 + shard.settings.in_flight_tokens) / block) * block + block)
    expected = spec.bytes_per_token * (full * 8192 + windowed * kept)
    assert memory.sequence_bytes(shard, shard.stages[0], 8192) == expected


@pytest.mark.parametrize(
    ("model", "engine", "size"),
    [
        # 62 layers of 8,192 B a token, all of them whole; then 10 whole, and 52 filled up to 60 with 577 blocks of 16.
        ("gemma-3-27b", "vllm:0.6.6", 62 * 65536 * 8192),
        ("gemma-3-27b", "vllm:0.9.0", 62 * 65536 * 8192),
        ("gemma-3-27b", "vllm:0.9.1", (10 * 65536 + 60 * 577 * 16) * 8192),
        # 48 layers of 512 B a token on one of eight GPUs, 36 of them in chunks of 8,192.
        ("llama-4-scout-17b-16e", "vllm:0.9.2", 48 * 65536 * 512),
        ("llama-4-scout-17b-16e", "vllm:0.10.2", 48 * 65536 * 512),
        ("llama-4-scout-17b-16e", "vllm:0.14.0", (12 * 65536 + 36 * 1025 * 16) * 512),
        # No layer keeps everything, so all are cut: 32 layers, 4,095 + 8,192 tokens in 769 blocks.
        ("mistralai/Mistral-7B-v0.1", "vllm:0.8.5", 32 * 769 * 16 * 4096),
    ],
)
def test_windowed_layers_beside_full_ones_are_whole_in_older_engines(model: str, engine: str, size: int) -> None:
    """unify_hybrid_kv_cache_specs of vLLM to 0.9.0; chunks are windows at 0.10.0 and from 0.13 on."""
    tp, tokens = (8 if model.startswith("llama-4") else 1), 32768 if "Mistral" in model else 65536
    found = deployed(model=model, gpu="h100-sxm", tp=tp, engine=engine, max_model_len=tokens)
    assert found.memory.sequence_gib * GIB == pytest.approx(size, rel=1e-3)


def test_windows_have_a_pool_of_their_own_in_sglang() -> None:
    """0.8 tokens for each of the full layers: gpt-oss has 18 of both, of 2,048 B a token, and a long context has no more."""
    used = deployed(model="gpt-oss-120b", gpu="h200-sxm", engine="sglang:0.5.9").memory
    assert used.kv_cache_tokens == pytest.approx(used.kv_cache_gib * GIB / (2048 * 18 * (1 + 0.8)), rel=1e-4)
    asked = {"model": "gpt-oss-120b", "gpu": "h200-sxm", "engine": "sglang:0.5.9", "max_model_len": 100}
    short = deployed(**asked).memory  # of a prompt below the window, the pool for windows is the first to be full
    assert short.kv_cache_tokens == pytest.approx(0.8 * used.kv_cache_tokens, rel=1e-3)


def test_more_sequences_than_blocks_do_not_start_from_0_20() -> None:
    options = {"model": "qwen3.5-27b", "gpu": "h100-sxm", "memory_fraction": 0.95}
    old, new = (deployed(engine=f"vllm:{version}", **options).memory for version in ("0.19.0", "0.20.0"))
    assert old.starts and old.most_num_seqs is None
    assert not new.starts and new.fits
    most = new.most_num_seqs
    assert most is not None
    assert deployed(engine="vllm:0.20.0", max_num_seqs=most, **options).memory.starts
    assert deployed(engine="vllm:0.20.0", enforce_eager=True, **options).memory.starts


def test_sglang_gives_states_a_pool_of_their_own() -> None:
    """Qwen3.5-397B over two GPUs: 82 states (and one of padding) in 7.42 GiB beside 580,364 tokens in 8.30 GiB.
    https://github.com/kvcache-ai/ktransformers/issues/1870
    """
    used = deployed(
        model="qwen3.5-397b-a17b",
        gpu="b300",
        tp=2,
        engine="sglang:0.5.9",
        precision="int4",
        kv_cache_bytes=f"{15.72 * GIB:.0f}",
        max_model_len=32768,
    ).memory
    assert used.state_cache_gib == pytest.approx(7.42, rel=0.01)
    assert used.kv_cache_gib == pytest.approx(8.30, rel=0.01)
    assert used.kv_cache_tokens == pytest.approx(580_364, rel=0.01)
    assert used.most_num_seqs == 82 // 3


def test_tensorrt_llm_sets_states_of_all_sequences_aside() -> None:
    few, many = (
        deployed(model="nemotron-h-56b", gpu="h200-sxm", engine="tensorrt-llm:1.2", max_num_seqs=n).memory
        for n in (8, 16)
    )
    assert few.state_cache_gib == pytest.approx(many.state_cache_gib / 2)
    assert few.kv_cache_gib - many.kv_cache_gib == pytest.approx(few.state_cache_gib, rel=0.05)


def test_prefixes_found_in_cache_switch_caching_on() -> None:
    """A hit is of whole blocks, which hold 784 tokens here; a request then keeps two states."""
    found = deployed(model="qwen3.5-27b", gpu="h200-sxm", engine="vllm:0.20.0", prefix_hit="30%")
    assert found.replica.settings.prefix_caching
    shard = found.replica.shard
    cut = footprint.pages(shard, shard.stages[0])
    assert cut is not None and cut.states == 2


def test_windows_are_kept_for_all_batches_in_flight() -> None:
    """One to 0.25, two with asynchronous scheduling from 0.26.0; a sequence that decodes holds the same."""
    options = {"model": "gemma-3-27b", "gpu": "h200-sxm", "max_model_len": 65_536}
    one, two = (deployed(engine=f"vllm:{version}", **options) for version in ("0.25.0", "0.26.0"))
    assert two.replica.settings.in_flight_tokens == 2 * one.replica.settings.in_flight_tokens
    assert two.memory.sequence_gib > one.memory.sequence_gib
    assert two.memory.resident_gib == one.memory.resident_gib < one.memory.sequence_gib


@pytest.mark.parametrize(("model", "size"), [("deepseek-v3.2", 61 * 788), ("glm-5.2", 78 * 656 + 21 * 132)])
def test_sparse_attention_in_8_bit_keeps_scales_and_the_rotary_part(model: str, size: int) -> None:
    """512 values, four scales and 64 values of 16 bit are 656 B a latent, an index key 132 B, on layers with an indexer."""
    assert deployed(model=model, gpu="h200-sxm", tp=8, kv_precision="fp8").memory.kv_bytes_per_token == size


def test_an_engine_runs_as_many_sequences_as_it_is_sure_to_start_with() -> None:
    """A log has 939 blocks for recurrent states, https://github.com/vllm-project/recipes/pull/831: the engine's own 1,024 do not
    start, and the number taken is for the small end of the pools that engines log.
    """
    options = {
        "model": "qwen3.8-27b",
        "precision": "fp8_block",
        "gpu": "rtx-pro-6000-workstation",
        "engine": "vllm:0.27.0",
    }
    question = ask_layout(**options, max_model_len=1500)
    told, run = deployment(question), running(question)
    assert not told.memory.starts and run.memory.starts
    assert 0.9 * 939 < run.replica.settings.max_num_seqs <= 939
    assert lowered_from(run.replica) == told.replica.settings.max_num_seqs == 1024
    for few in (64, 938):  # a stated number is taken as it is
        asked = running(ask_layout(**options, max_model_len=1500, max_num_seqs=few))
        assert asked.replica.settings.max_num_seqs == few and lowered_from(asked.replica) is None
    assert lowered_from(running(ask_layout(model="qwen3.5-27b", gpu="h200-sxm", engine="vllm:0.27.0")).replica) is None


def test_an_estimate_says_the_number_that_starts(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "estimate",
        "-m",
        "Qwen3.6-35B-A3B-FP8",
        "-g",
        "l40s",
        "--engine",
        "vllm:0.27.0",
        "--isl",
        "1000",
        "--osl",
        "500",
    ]
    assert run_command([*asked, "--rps", "1", "--no-verify"]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert run_command([*asked, "--rps", "1", "--no-verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    serving = found["inputs"]["serving"]
    most, own = serving["max_num_seqs"], serving["max_num_seqs_lowered_from"]
    assert most < own and most <= found["memory"]["most_num_seqs"]
    assert f"--max-num-seqs {most:,} in place of {own:,}, as recurrent states allow" in screen
    assert any("is sure to start" in one["what"] and one["value"] == most for one in found["assumptions"])
