"""Whose measured kernels time a GPU: its own, those of the card that it is a copy of, or borrowed ones."""

from __future__ import annotations

from typing import Any

import pytest
from builders import kernels_for, real_gpu, real_model

from sizing.catalog.profiles import card_of, load_gpu
from sizing.model import operations
from sizing.model.architecture import Layout
from sizing.replica.step import Batch, step
from sizing.specs.gpu import Gpu

CARDS = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "l40s", "mi300x", "b200")


def copy_of(card: str, **memory: Any) -> Gpu:
    gpu = load_gpu(card).spec
    sheet = gpu.datasheet
    changed = sheet.model_copy(update={"memory": sheet.memory.model_copy(update=memory)})
    return gpu.model_copy(update={"name": "My own card", "aliases": (), "datasheet": changed})


@pytest.mark.parametrize("card", CARDS)
def test_a_renamed_copy_is_as_fast_as_the_card(card: str) -> None:
    """Its room is no fact that kernels depend on."""
    model, own, copy = real_model("llama-3.1-8b"), real_gpu(card), copy_of(card, marketed_gb=90, cuda_visible_gib=88.0)
    steps = [step(kernels_for(model, gpu, Layout()), Batch(64.0, 2000.0)).total_s for gpu in (own, copy)]
    assert steps[1] == steps[0]


def test_a_card_of_another_bandwidth_borrows() -> None:
    assert card_of(copy_of("h100-sxm", bandwidth_gb_per_s=3000)) == "My own card"
    assert card_of(copy_of("h100-sxm")) == load_gpu("h100-sxm").spec.name
    assert card_of(load_gpu("h100-sxm:3g.40gb").spec) == "H100 SXM 80GB slice 3g.40gb"


@pytest.mark.parametrize(
    ("rows", "compute", "memory"), [(1, 0.04, 0.53), (50, 0.04, 0.53), (51, 0.19, 0.25), (2048, 0.19, 0.25)]
)
def test_a_product_of_few_rows_is_timed_by_its_own_kernel(rows: int, compute: float, memory: float) -> None:
    """MI100 and 8-bit weights, by hand: 7.5 us, 184.6 TFLOPS and 1,228.8 GB/s at the shares of the profile."""
    kernels = kernels_for(real_model("llama-3.1-8b"), real_gpu("mi100"), precision_name="int8")
    matrix = next(o for o in operations.split_body(kernels.shard, float(rows)) if o.name == "o_proj")
    by_hand_s = 7.5e-6 + matrix.flops / (184.6e12 * compute) + matrix.bytes / (1228.8e9 * memory)
    assert kernels.seconds(matrix) == pytest.approx(by_hand_s, rel=1e-9)


@pytest.mark.parametrize("card", ("a100-sxm-80gb", "rtx-3090", "h100-sxm", "b200"))
@pytest.mark.parametrize("engine", ("tensorrt-llm:1.2.0", "vllm:0.19.0"))
def test_decode_attention_reads_no_faster_than_the_memory(card: str, engine: str) -> None:
    gpu = real_gpu(card)
    kernels = kernels_for(real_model("llama-3.1-8b"), gpu, Layout(), engine=engine)
    for sequences in (64.0, 1024.0):
        for operation in operations.decode_attention(kernels.shard, sequences, 4096.0):
            read_s = float(operation.bytes) / gpu.datasheet.memory.bandwidth_gb_per_s / 1e9
            assert float(kernels.seconds(operation)) >= read_s, (operation.name, sequences)


@pytest.mark.parametrize(("model", "slower"), [("llama-3.1-70b", True), ("llama-3.1-8b", False)])
def test_older_kernels_read_the_cache_of_groups_of_eight_slowly(model: str, slower: bool) -> None:
    gpu = real_gpu("h100-sxm")
    seconds = []
    for version in ("0.15.0", "1.2.0"):
        kernels = kernels_for(real_model(model), gpu, Layout(tp=8), engine=f"tensorrt-llm:{version}")
        (operation,) = operations.decode_attention(kernels.shard, 512.0, 4096.0)
        seconds.append(float(kernels.seconds(operation)))
        read_s = float(operation.bytes) / gpu.datasheet.memory.bandwidth_gb_per_s / 1e9
    assert (seconds[0] > 1.3 * seconds[1]) == slower
    assert not slower or seconds[0] == pytest.approx(2 * read_s, rel=0.01)


@pytest.mark.parametrize(
    ("card", "precision", "faster"), [("l40s", "fp8", 1.2), ("l40s", "bf16", 1.0), ("h100-sxm", "fp8", 1.0)]
)
def test_compiled_engines_multiply_faster_in_fp8_on_ada(card: str, precision: str, faster: float) -> None:
    """A long product takes the time of its multiplications, so nearly the whole gain."""
    gpu, model, seconds = real_gpu(card), real_model("llama-3.1-8b"), []
    for version in ("0.18.0", "0.19.0"):
        kernels = kernels_for(model, gpu, engine=f"tensorrt-llm:{version}", precision_name=precision)
        product = next(o for o in operations.split_body(kernels.shard, 8192.0) if o.name == "mlp_up")
        seconds.append(float(kernels.seconds(product)))
    assert seconds[1] / seconds[0] == pytest.approx(faster, rel=0.02)
