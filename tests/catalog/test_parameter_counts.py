"""Every parameter count: profiles of the catalogue, and published configs against an independent count."""

from __future__ import annotations

import csv
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from config_builders import CATALOGUE, catalogue, faults, profile, read
from places import ROOT, SHARED

from sizing.model.architecture import active_parameters, parameters
from sizing.specs.errors import InputError

FACTS = SHARED / "facts"


# --- the catalogue ---

# Why a computed total is not the published one, and how far below or above it may lie.
TOTALS: dict[str, tuple[float, str]] = {
    "falcon-7b": (0.05, "the published total counts the tied head twice"),
    "falcon-40b": (0.02, "the published total counts the tied head twice"),
    "kimi-k2": (0.03, "published as one trillion"),
    "kimi-k2.5": (0.03, "published as one trillion"),
    "kimi-k2.6": (0.03, "published as one trillion"),
    "gemma-4-e2b": (0.012, "its towers are those of the library's defaults"),
    "gemma-4-e4b": (0.016, "its towers are those of the library's defaults"),
}

ACTIVE: dict[str, tuple[float, str]] = {
    "kimi-vl-a3b": (0.05, "published for the language decoder, embedding partly counted"),
}


def rounding(published: float) -> float:
    """Half a unit of the last digit that a published count states."""
    exponent = Decimal(str(int(published) if published == int(published) else published)).as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.5 * 10.0**exponent


@pytest.mark.parametrize("path", CATALOGUE, ids=lambda path: path.stem)
def test_a_profile_counts_the_published_parameters(path: Path) -> None:
    entry, model = profile(path), catalogue(path.stem)
    total, text = parameters(model) / 1e9, (parameters(model) - model.extra_parameters) / 1e9
    share = TOTALS.get(path.stem, (0.01, ""))[0]
    room = max(share * entry.parameters_b, rounding(entry.parameters_b))
    # Some publishers count the vision tower and some do not.
    assert min(abs(total - entry.parameters_b), abs(text - entry.parameters_b)) <= room
    if entry.active_parameters_b is not None:
        active = (active_parameters(model) - model.extra_parameters) / 1e9
        embedding = model.vocab_size * model.hidden_size / 1e9
        share = ACTIVE.get(path.stem, (0.03, ""))[0]
        room = max(share * entry.active_parameters_b, rounding(entry.active_parameters_b))
        # Nor do they agree on counting the input embedding and the head.
        assert min(abs(active - k * embedding - entry.active_parameters_b) for k in (0, 1, 2)) <= room


@pytest.mark.parametrize("stem", sorted(TOTALS.keys() | ACTIVE.keys()))
def test_an_exception_is_still_needed(stem: str) -> None:
    entry, model = profile(ROOT / "workloads" / "models" / f"{stem}.yaml"), catalogue(stem)
    total = (parameters(model) - model.extra_parameters) / 1e9
    off_total = abs(total / entry.parameters_b - 1) > 0.01
    active = (active_parameters(model) - model.extra_parameters) / 1e9
    off_active = entry.active_parameters_b is not None and abs(active / entry.active_parameters_b - 1) > 0.03
    assert off_total if stem in TOTALS else off_active


@pytest.mark.parametrize("path", CATALOGUE, ids=lambda path: path.stem)
def test_a_profile_is_complete(path: Path) -> None:
    model = catalogue(path.stem)
    assert model.hidden_size > 1 and model.vocab_size > 1 and model.max_position > 1
    assert len(model.layers) > 1 and set(model.layers) == set(range(len(model.kinds)))
    assert path.stem == path.stem.lower()
    lines = path.read_text(encoding="utf-8").splitlines()
    first, second, *_ = (line for line in lines if not line.startswith("#"))
    entry = profile(path)
    assert first == f"name: {entry.name}"
    assert second == f"aliases: [{', '.join(entry.aliases)}]"


def test_a_profile_states_whether_its_embeddings_are_tied() -> None:
    silent = [
        path.stem for path in CATALOGUE if any("tie_word_embeddings" in note for note in catalogue(path.stem).notes)
    ]
    assert silent == []


def test_names_and_aliases_are_unique() -> None:
    names = [
        name.rpartition("/")[2].lower() for path in CATALOGUE for name in (profile(path).name, *profile(path).aliases)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


# --- published configs ---

# Configs that can't be read, and the field that says why.
REFUSED = {
    "openai__whisper-large-v3": "model_type",
    # These copies lack the algorithm and its lists.
    "nvidia__MiniMax-M3-NVFP4": "quantization_config.config_groups",
    "nvidia__Qwen3.6-27B-NVFP4": "quantization_config.config_groups",
    "nvidia__Qwen3.6-35B-A3B-NVFP4": "quantization_config.config_groups",
}


# The indexer of DeepSeek-V3.2 is in our count and not in the independent one (0.85 B).
ACTIVE_SHARE = {"deepseek-ai__DeepSeek-V3.2": 0.03}


@pytest.mark.skipif(not FACTS.is_dir(), reason="the published configs are not part of the project")
def test_no_published_key_passes_for_a_misspelt_one() -> None:
    read_or_refused = 0
    for path in sorted((FACTS / "configs").glob("*.json")):
        try:
            read(json.loads(path.read_text(encoding="utf-8")))
        except InputError as error:
            mistaken = [fault for fault in error.faults if "unknown key" in fault.message]
            assert not mistaken, path.stem
        read_or_refused += 1
    assert read_or_refused > 100


@pytest.mark.skipif(not FACTS.is_dir(), reason="the published configs are not part of the project")
def test_published_configs_agree_with_an_independent_count() -> None:
    with (FACTS / "models.csv").open(encoding="utf-8") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    compared = 0
    for path in sorted((FACTS / "configs").glob("*.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        if path.stem in REFUSED:
            assert REFUSED[path.stem] in faults(config), path.stem
            continue
        model = read(config)
        row = rows.get(path.stem)
        if row is not None:
            extra = model.extra_parameters
            total, active = (parameters(model) - extra) / 1e9, (active_parameters(model) - extra) / 1e9
            assert total == pytest.approx(float(row["total_params_computed_b"]), rel=0.01), path.stem
            share = ACTIVE_SHARE.get(path.stem, 0.02)
            assert active == pytest.approx(float(row["active_params_computed_b"]), rel=share), path.stem
            compared += 1
    assert compared > 60
