"""Published checkpoints by name: the rows of workloads/models/_checkpoints.csv, and the vocabulary of such names."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from sizing.catalog.config.fields import WRAPPERS, spelled
from sizing.catalog.config.quantisation import SECTIONS
from sizing.catalog.files import data_folder, read_text
from sizing.catalog.shelf import hyphenated, only
from sizing.specs.errors import Fault
from sizing.specs.model import Checkpoint, CheckpointRules
from sizing.specs.values import OneFile, Sourced, Spec, Text
from sizing.specs.workload import Precision

FILE = "_checkpoints.csv"
TIED = ("tie_word_embeddings",)
OF_STORAGE = (*SECTIONS, "expert_dtype")


class NamedQuantisation(Spec):
    """A suffix of checkpoint names with its weight precision. It may be limited to certain `organisations`."""

    suffix: Text
    precision: Precision
    organisations: tuple[Text, ...] = ()
    says: Text


class NameRules(OneFile, Sourced):
    """The vocabulary of checkpoint names."""

    FILE = "workloads/models/_suffixes.yaml"

    name: Text
    prefixes: tuple[Text, ...]
    stages: tuple[Text, ...]
    file_forms: tuple[Text, ...]
    release_date: Text
    renamed: dict[Text, Text]
    respelled: dict[Text, Text]
    quantisations: tuple[NamedQuantisation, ...]


def as_format(fault: Fault, name: str) -> Fault:
    """The fault of an unknown precision; where checkpoints are named by this format, as `awq`, it says what to write in place."""
    like = next((each.precision for each in only(NameRules).quantisations if each.suffix == name.lower()), None)
    by_name = f"write {like}, or with -m the name of a checkpoint in this format, which states it"
    return fault if like is None else replace(fault, nearest=None, remedy=by_name)


def without_organisation(name: str) -> str:
    """Drop the organisation of a Hub id: `meta-llama/Llama-3.1-8B` becomes `Llama-3.1-8B`."""
    return name.rstrip("/").rpartition("/")[2]


def published(name: str, *, like: bool = False) -> Checkpoint | None:
    """The checkpoint with a name; None if it is unknown.

    A name without organisation matches any organisation. `like` also accepts a copy by another organisation.
    """
    asked = hyphenated(name)
    organisation, _, last = asked.rpartition("/")
    row = _by_name().get(asked) or next((_by_name()[other] for other in respelled(asked) if other in _by_name()), None)
    if row is None and organisation in (renamed := only(NameRules).renamed):
        row = _by_name().get(hyphenated(f"{renamed[organisation]}/{last}"))
    if row is None and (like or "/" not in name):
        row = _by_last_part().get(last)
    return None if row is None else _checkpoint(row)


def respelled(name: str) -> Iterator[str]:
    """Yield the name with its format's other spelling: publishers have renamed checkpoints from -FP4 to -NVFP4."""
    for ending, other in only(NameRules).respelled.items():
        if name.endswith(f"-{ending}"):
            yield f"{name.removesuffix(ending)}{other}"


def _checkpoint(row: Mapping[str, str]) -> Checkpoint:
    stated = {key: value.split() if key == "kept" else value for key, value in row.items() if value}
    return Checkpoint.model_validate(stated)


def unquantised(begins: Callable[[str], bool]) -> list[Checkpoint]:
    """The checkpoints without a format of their own whose name, without organisation, `begins` as asked."""
    found = (_checkpoint(row) for last, row in _by_last_part().items() if begins(last))
    return [checkpoint for checkpoint in found if not checkpoint.stored]


def stored_in(formats: Iterable[str], model: str) -> str | None:
    """The first published checkpoint of a model, by the name of one without a format, that is stored in one of `formats`."""
    of = without_organisation(hyphenated(model))
    rows = (row for last, row in _by_last_part().items() if last.startswith(of) or last.startswith(f"meta-{of}"))
    return next((row["name"] for row in rows if row["stored"] in formats), None)


def names() -> tuple[str, ...]:
    """The names of all published checkpoints."""
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
    """The profile's config with the checkpoint's own values."""
    rules, config = only(CheckpointRules), dict(profile)
    if checkpoint.positions is not None:
        config = _stated(config, spelled("MAX_POSITION"), checkpoint.positions)
    if checkpoint.vocabulary is not None:
        config = _stated(config, spelled("VOCABULARY"), checkpoint.vocabulary)
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
    """A config with the values of `keys` replaced by `value`, also inside wrappers."""
    changed = {key: value if key in keys else inner for key, inner in config.items()}
    for wrapper in WRAPPERS:
        if isinstance(config.get(wrapper), Mapping):
            changed[wrapper] = _stated(dict(config[wrapper]), keys, value)
    return changed


def _without_sections(config: Any) -> Any:
    if not isinstance(config, Mapping):
        return config
    return {key: value for key, value in config.items() if key not in OF_STORAGE}
