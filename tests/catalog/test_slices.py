"""Slices of cards (multi-instance GPU) by name."""

from __future__ import annotations

import pytest

from sizing.catalog.profiles import load_gpu
from sizing.specs.errors import InputError


@pytest.mark.parametrize(
    ("name", "gib", "compute"),
    [
        ("h100-sxm:3g.40gb", 39.5, 60 / 132),
        ("h100-sxm:1g.10gb", 9.75, 16 / 132),
        ("a100-sxm-80gb:2g.20gb", 19.62, 28 / 108),
        ("a100-sxm-40gb:1g.5gb", 4.75, 14 / 108),
        ("a30:2g.12gb", 11.69, 28 / 56),
    ],
)
def test_a_slice_has_its_part_of_the_card(name: str, gib: float, compute: float) -> None:
    """Sizes that nvidia-smi lists (from memory); what the driver keeps of a slice is left out, up to 5 % of the smallest."""
    found, whole = load_gpu(name), load_gpu(name.partition(":")[0])
    sheet = found.spec.datasheet
    assert found.id == name
    assert sheet.memory.cuda_visible_gib == pytest.approx(gib, rel=0.05)
    assert sheet.dense_tflops.bf16 == pytest.approx((whole.spec.datasheet.dense_tflops.bf16 or 0) * compute)
    assert sheet.island_gpus == 1 and found.spec.prices == ()


@pytest.mark.parametrize("name", ["l40s:1g.6gb", "h100-sxm:5g.40gb", "h100-sxm:4g.10gb", "h100-sxm:3g.90gb"])
def test_a_slice_that_no_card_has_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="no slice"):
        load_gpu(name)
