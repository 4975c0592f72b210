"""Published checkpoints by name: what each states beside the architecture of its profile.

A checkpoint is a profile's config with its own positions, vocabulary and quantization_config, which are read as those of any
config.json are. One line of workloads/models/_checkpoints.csv tells one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from functools import cache
from typing import Any

from sizing.catalog.config.fields import MAX_POSITION, VOCABULARY, WRAPPERS
from sizing.catalog.config.quantisation import SECTIONS
from sizing.catalog.files import data_folder, read_text
from sizing.catalog.shelf import hyphenated, only
from sizing.specs.errors import Fault, InputError
from sizing.specs.model import Checkpoint, CheckpointRules

FILE = "_checkpoints.csv"
TIED = ("tie_word_embeddings",)
OF_STORAGE = (*SECTIONS, "expert_dtype")


def published(name: str, *, like: bool = False) -> Checkpoint | None:
    """The checkpoint with a name, None where it is not known. Raises InputError for one that is known not to be modelled.

    A name without organisation is any organisation's. `like` also takes another organisation's copy of the same name.
    """
    asked = hyphenated(name)
    row = _by_name().get(asked)
    if row is None and (like or "/" not in name):
        row = _by_last_part().get(asked.rpartition("/")[2])
    if row is None:
        return None
    found = Checkpoint.model_validate(
        {key: value.split() if key == "kept" else value for key, value in row.items() if value}
    )
    if found.profile is None:
        raise InputError(Fault(f"{found.name} is not modelled: {found.source}", allowed="its config.json"))
    return found


def names() -> tuple[str, ...]:
    """Every published name."""
    return tuple(row["name"] for row in _by_name().values())


@cache
def _by_name() -> dict[str, dict[str, str]]:
    text = read_text(data_folder("workloads") / "models" / FILE)
    return {hyphenated(row["name"]): row for row in csv.DictReader(io.StringIO(text, newline=""))}


@cache
def _by_last_part() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name, row in _by_name().items():
        found.setdefault(name.rpartition("/")[2], row)
    return found


def config_of(checkpoint: Checkpoint, profile: Mapping[str, Any]) -> dict[str, Any]:
    """The profile's config with what the checkpoint states of its own."""
    rules, config = only(CheckpointRules), dict(profile)
    if checkpoint.positions is not None:
        config = _stated(config, MAX_POSITION, checkpoint.positions)
    if checkpoint.vocabulary is not None:
        config = _stated(config, VOCABULARY, checkpoint.vocabulary)
    if checkpoint.head is not None:
        config = _stated(config, TIED, False)
    if checkpoint.stored is None and checkpoint.cache is None:
        return config
    kept = [pattern for word in checkpoint.kept for pattern in rules.kept.get(word, (word,))]
    section = {**rules.storages[checkpoint.stored or "none"], "ignore": kept}
    if checkpoint.cache is not None:
        section["kv_cache_quant_algo"] = checkpoint.cache.upper()
    config = {key: _without_sections(value) if key in WRAPPERS else value for key, value in config.items()}
    return {**_without_sections(config), **({SECTIONS[0]: section} if len(section) > 1 else {})}


def _stated(config: dict[str, Any], keys: tuple[str, ...], value: int | bool) -> dict[str, Any]:
    """A config with a value in place of those of the keys, at any level."""
    changed = {key: value if key in keys else inner for key, inner in config.items()}
    for wrapper in WRAPPERS:
        if isinstance(config.get(wrapper), Mapping):
            changed[wrapper] = _stated(dict(config[wrapper]), keys, value)
    return changed


def _without_sections(config: Any) -> Any:
    return (
        {key: value for key, value in config.items() if key not in OF_STORAGE}
        if isinstance(config, Mapping)
        else config
    )
