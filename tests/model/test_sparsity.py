"""2:4 sparsity: bytes by hand, the published gains over dense, and the laws that hold for any model."""

from __future__ import annotations

import pytest
from builders import option
from optimised_builders import laid

from sizing.cli.main import run
from sizing.model import precision
from sizing.model.architecture import Layout
from sizing.replica.replica import unchecked

MODEL = "llama-2-70b"
# MLPerf v4.0, Llama-2-70B FP8 with SparseGPT on one H100, over dense FP8 at the same batch.
PUBLISHED = {32: 1.62, 64: 1.52, 128: 1.35, 896: 1.30}
CONTEXT_TOKENS = 441.0  # OpenOrca as MLPerf samples it: about 294 prompt tokens and half of 294 answered


def bytes_of(name: str, role: str, **asked: str) -> float:
    return laid(MODEL, precision_name=name, **asked).kernels.plan.weight_bytes(role)


def test_a_pruned_weight_takes_half_the_value_and_a_bit() -> None:
    """Two of four values are kept, each with 2 bits of position: 16 bit (2*16 + 2*2)/(4*16) = 0.5625, 8 bit 0.625."""
    for name, share in (("bf16", 0.5625), ("fp8", 0.625), ("int8", 0.625)):
        for role in ("attention", "dense_mlp"):
            dense, sparse = bytes_of(name, role), bytes_of(name, role, sparsity="2:4")
            assert sparse == pytest.approx(share * dense, rel=1e-9), (name, role)


@pytest.mark.parametrize("role", ["embedding", "lm_head", "norm", "router"])
def test_what_is_no_linear_layer_stays_dense(role: str) -> None:
    assert bytes_of("fp8", role, sparsity="2:4") == bytes_of("fp8", role)


def test_llama_2_70b_is_37_per_cent_smaller() -> None:
    """68.45e9 weights in linear layers at 1 byte and two vocabularies of 32,000 x 8,192 at 2 bytes: 69.5 GB; with 0.625 of the first 43.8."""
    dense, sparse = (
        laid(MODEL, precision_name="fp8", **asked).memory.weights_gib for asked in ({}, {"sparsity": "2:4"})
    )
    assert 1 - sparse / dense == pytest.approx(0.37, abs=0.005)


@pytest.mark.parametrize(("batch", "published"), PUBLISHED.items())
def test_the_gain_over_dense_is_as_published(batch: int, published: float) -> None:
    """One share of the sparse rate for all batches. 1.62 is above what the bytes alone give, 69.5/43.8 = 1.59."""
    dense, sparse = (
        laid(MODEL, engine="tensorrt-llm:1.2.0", precision_name="fp8", kv="fp8", **asked)
        .step(float(batch), CONTEXT_TOKENS)
        .total_s
        for asked in ({}, {"sparsity": "2:4"})
    )
    assert dense / sparse == pytest.approx(published, rel=0.11)


@pytest.mark.parametrize("batch", [1, 16, 128, 1024])
@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_the_gain_is_never_beyond_the_roofline(batch: int, name: str) -> None:
    """Neither bytes nor rate give more: 1/0.5625 and 2."""
    dense, sparse = (
        laid(MODEL, engine="vllm:0.19.0", precision_name=name, **asked).step(float(batch), 500.0).total_s
        for asked in ({}, {"sparsity": "2:4"})
    )
    assert 1 <= dense / sparse <= 2


def test_a_card_without_sparse_products_is_refused() -> None:
    service = laid("llama-3.1-8b", "mi300x", sparsity="2:4").question.service
    _, refused = unchecked(service, option("mi300x"), Layout(), None)
    reasons = dict(refused)
    assert "no sparse products" in reasons["sparsity"]


def test_a_format_without_a_pruned_form_is_refused() -> None:
    of = laid("llama-3.1-8b", precision_name="int4", sparsity="2:4")
    assert "INT4 weights have no 2:4 form" in str(precision.sparsity_why_not(of.kernels.plan, of.kernels.gpu))


@pytest.mark.parametrize(
    ("gpu", "name", "refused"),
    [
        ("a100-sxm-80gb", "fp8", True),
        ("rtx-3090", "fp8", True),
        ("a100-sxm-80gb", "int8", False),
        ("a100-sxm-80gb", "bf16", False),
        ("h100-sxm", "fp8", False),
        ("l40s", "fp8", False),
    ],
)
def test_a_format_that_is_only_dequantised_has_no_sparse_kernel(gpu: str, name: str, refused: bool) -> None:
    """FP8 products come with Ada and Hopper; before, weights become 16 bit in a kernel that knows no 2:4."""
    of = laid("llama-3.1-8b", gpu, precision_name=name, sparsity="2:4")
    why = precision.sparsity_why_not(of.kernels.plan, of.kernels.gpu)
    assert ("FP8 weights are dequantised" in str(why)) if refused else why is None


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("v100-sxm2-32gb", "fp16"), ("h100-sxm", "int4"), ("h100-sxm", "nvfp4"), ("h100-sxm", "fp8_block")],
)
def test_the_option_that_is_refused_is_the_one_blamed(capsys: pytest.CaptureFixture[str], gpu: str, name: str) -> None:
    arguments = ("-m", "llama-3.1-8b", "-g", gpu, "--precision", name, "--decode", "1", "--context", "100")
    assert run(["step", *arguments, "--sparsity", "2:4"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--sparsity: " in line
    assert "--tp" not in line
