"""Images in prompts: tokens by family worked by hand, encoders that are the model's own, and what is said of borrowed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import real_model
from hypothesis import given
from hypothesis import strategies as st
from optimised_builders import extras_for, laid
from places import ROOT

from sizing.catalog import shelf
from sizing.catalog.config.model import read_model
from sizing.cli.main import run
from sizing.model.extras import Encoder, images
from sizing.specs.errors import InputError
from sizing.specs.facts import OptimisationFacts
from sizing.specs.model import Vision

PACKAGED = ROOT / "workloads" / "models"
TOWER = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096, "patch_size": 14}


def encoder_of(model: str, asked: str) -> Encoder:
    found = extras_for(real_model(model), images=asked).encoder
    assert found is not None
    return found


def vision_of(vision: dict[str, Any], **root: Any) -> Vision | None:
    config = yaml.safe_load((PACKAGED / "qwen3-8b.yaml").read_text())["config"]
    return read_model({**config, **root, "vision_config": vision}, name="a model", source="here").vision


@pytest.mark.parametrize(
    ("model", "asked", "tokens", "pieces", "patches"),
    [
        # 32 x 32 pixels a token (patches of 16, 2 x 2 merged): 32 * 24, four patches each
        ("qwen3-vl-8b", "1x1024x768", 768, 1, 3072),
        ("qwen3.5-27b", "2x1024x768", 2 * 768, 2, 3072),
        ("qwen3-vl-8b", "1x20000x20000", 16_384, 1, 65_536),
        # sides of whole tokens, to the nearest: 600/32 = 18.75 is 19, 840/32 = 26.25 is 26
        ("qwen3-vl-8b", "1x600x840", 19 * 26, 1, 19 * 26 * 4),
        # scaled up to 65,536 pixels, by 10.12: 102 x 648 are 4 x 21 squares of 32
        ("qwen3-vl-8b", "1x10x64", 4 * 21, 1, 4 * 21 * 4),
        # 28 x 28 pixels, padded: ceil(1024/28) * ceil(768/28) = 37 * 28
        ("kimi-k2.5", "1x1024x768", 1036, 1, 4144),
        ("kimi-k2.5", "1x9000x9000", 4096, 1, 16_384),
        # 256 whatever the size, of (896/14)^2 patches
        ("gemma-3-12b", "1x1024x768", 256, 1, 4096),
        ("gemma-3-12b", "3x64x64", 3 * 256, 3, 4096),
        # 280 of 3 x 3 patches
        ("gemma-4-31b", "1x1024x768", 280, 1, 2520),
        # tiles of 336 x 336: (336/14)^2 = 576 patches, a quarter as many tokens = 144
        ("llama-4-scout-17b-16e", "1x336x336", 144, 1, 576),
        ("llama-4-scout-17b-16e", "1x1024x768", 13 * 144, 13, 576),  # 4 x 3 tiles and the whole image
        ("llama-4-scout-17b-16e", "1x100x2000", 7 * 144, 7, 576),  # 1 x 6
        ("llama-4-scout-17b-16e", "1x10000x10000", 17 * 144, 17, 576),  # at most 16
    ],
)
def test_tokens_by_family(model: str, asked: str, tokens: int, pieces: int, patches: int) -> None:
    found = encoder_of(model, asked)
    assert found.own
    assert (found.tokens, found.pieces, found.patches) == (tokens, pieces, patches)


def test_rows_end_in_a_token_each() -> None:
    """Pixtral: 37 rows of 28 and one more; 3,080 x 1,540 is halved to 1,540 x 770, 55 rows of 28 and one more."""
    assert images.in_rows(1024, 768, 14, 2, 1540) == (37 * 29, 1, 37 * 28 * 4)
    assert images.in_rows(3080, 1540, 14, 2, 1540) == (55 * 29, 1, 55 * 28 * 4)
    found = vision_of({**TOWER, "image_size": 1540}, spatial_merge_size=2)
    assert found == Vision(1024, 24, 14, "spatial_merge_size", 2, None, 1540)


@pytest.mark.parametrize(
    ("size", "grid"),
    [((336, 336), (1, 1)), ((337, 336), (2, 1)), ((1024, 768), (4, 3)), ((672, 672), (2, 2)), ((6000, 300), (16, 1))],
)
def test_a_canvas_enlarges_as_little_as_it_can(size: tuple[int, int], grid: tuple[int, int]) -> None:
    """337 rows of pixels take two tiles; 6,000 x 300 fit none and are shrunk least by 16 x 1 (5,376)."""
    assert images.canvas(*size, 336, 16) == grid


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), more=st.integers(0, 500))
def test_larger_images_never_take_fewer_tokens(height: int, width: int, more: int) -> None:
    small, large = (images.merged(height + grown, width, 16, 2, 16_384) for grown in (0, more))
    assert small.tokens <= large.tokens
    assert small.patches == 4 * small.tokens


@given(height=st.integers(1, 9000), width=st.integers(1, 9000))
def test_tiles_hold_at_most_what_they_may(height: int, width: int) -> None:
    rows, columns = images.canvas(height, width, 336, 16)
    assert rows * columns <= 16
    cut = images.tiled(height, width, 14, 2, 336, 16)
    assert cut.tokens == 144 * cut.pieces


# --- what a config states --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vision", "root", "field", "merge"),
    [
        ({"spatial_merge_size": 2}, {}, "vision_config.spatial_merge_size", 2),
        ({"merge_kernel_size": [3, 3]}, {}, "vision_config.merge_kernel_size", 3),
        ({"pixel_shuffle_ratio": 0.5}, {}, "vision_config.pixel_shuffle_ratio", 2),
        ({}, {"spatial_merge_size": 2}, "spatial_merge_size", 2),
        ({}, {"mm_tokens_per_image": 256}, "mm_tokens_per_image", 1),
        ({"pooling_kernel_size": 3}, {"vision_soft_tokens_per_image": 280}, "vision_soft_tokens_per_image", 3),
        ({}, {}, None, 1),
    ],
)
def test_the_field_that_is_there_says_the_rule(
    vision: dict[str, Any], root: dict[str, Any], field: str | None, merge: int
) -> None:
    found = vision_of({**TOWER, **vision}, **root)
    assert found is not None
    assert (found.field, found.merge) == (field, merge)
    assert field is None or field in shelf.only(OptimisationFacts).image_rules


@pytest.mark.parametrize("ratio", [0, 1.5, 0.3, "half", True])
def test_a_ratio_that_is_none_is_refused(ratio: Any) -> None:
    with pytest.raises(InputError, match="no ratio"):
        vision_of({**TOWER, "pixel_shuffle_ratio": ratio})


def test_a_config_of_ones_own_brings_its_encoder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = yaml.safe_load((PACKAGED / "qwen3-8b.yaml").read_text())["config"]
    file = tmp_path / "own.json"
    file.write_text(json.dumps({**config, "vision_config": {**TOWER, "patch_size": 16, "spatial_merge_size": 2}}))
    arguments = ("-g", "h100-sxm", "--isl", "100", "--osl", "10", "--rps", "1", "--images", "1x640x320", "--no-verify")
    assert run(["estimate", "-m", str(file), *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["isl"] == 100 + 20 * 10


# --- work and words ----------------------------------------------------------------------------------------------------------


def operations_of(model: str, asked: str) -> dict[str, float]:
    of = laid(model, "h200-sxm", tp=8, images=asked)
    found = of.step(prefill_sequences=1.0, prefill_tokens=1000.0, finishing=1.0).operations
    return {o.operation.name: float(o.operation.flops) * o.operation.count for o in found}


def test_the_encoders_work_is_that_of_the_models_own_tower() -> None:
    """Every parameter once for each of 3,072 patches; attention 4*n^2*width in each of 27 layers of 1,152."""
    work, model = operations_of("qwen3-vl-235b-a22b", "1x1024x768"), real_model("qwen3-vl-235b-a22b")
    assert work["image_encoder"] == pytest.approx(2 * model.vision_parameters * 3072)
    assert work["image_attention"] == pytest.approx(4 * 3072**2 * 1152 * 27)


def test_tiles_attend_to_themselves_alone() -> None:
    """13 tiles of 576 patches: 13 * 4*576^2*1408 in each of 34 layers."""
    assert operations_of("llama-4-scout-17b-16e", "1x1024x768")["image_attention"] == pytest.approx(
        13 * 4 * 576**2 * 1408 * 34
    )


@pytest.mark.parametrize("model", ["qwen3-vl-8b", "gemma-3-12b", "llama-4-scout-17b-16e"])
def test_an_own_encoder_is_in_the_weights_already(model: str) -> None:
    asked, plain = (laid(model, "h200-sxm", tp=4, **options) for options in ({"images": "1x336x336"}, {}))
    assert asked.memory.weights_gib == plain.memory.weights_gib


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("qwen3-vl-8b", "the model's own; Qwen-VL"),
        ("gemma-3-12b", "the model's own; Gemma 3"),
        ("llama-3.1-8b", "borrowed, Qwen2-VL vision tower; the model's config states none: it must be one that takes"),
        ("ministral-3-3b", "borrowed, Qwen2-VL vision tower; in place of the model's own"),
    ],
)
def test_whose_encoder_it_is_is_said(capsys: pytest.CaptureFixture[str], model: str, said: str) -> None:
    arguments = ("-m", model, "-g", "h100-sxm", "--isl", "100", "--osl", "10", "--rps", "1", "--no-verify", "--json")
    assert run(["estimate", *arguments, "--images", "1x560x560"]) == 0
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)["assumptions"]}
    assert said in found["image encoder"]["value"]
    assert found["tokens of a request's images"]["kind"] == found["image encoder"]["kind"]


@pytest.mark.parametrize(
    ("height", "width", "tokens"), [(28, 28, 64), (98, 98, 64), (32, 600, 70), (256, 256, 64), (600, 600, 361)]
)
def test_a_small_image_is_scaled_up_to_the_least_of_its_processor(height: int, width: int, tokens: int) -> None:
    """smart_resize by hand with shortest_edge 65,536: 32 x 600 is scaled by 1.85 to 59 x 1,109 pixels, 2 rows of 35 squares of 32."""
    assert images.merged(height, width, 16, 2, 16_384, least_tokens=64).tokens == tokens
