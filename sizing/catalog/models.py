"""Models by a catalogue name, a checkpoint's name, a config.json, or the folder of a checkpoint.

A published checkpoint is a line of workloads/models/_checkpoints.csv: a profile's config with its own positions, vocabulary and
quantization_config, which are read as from any config.json. The name of any other checkpoint is split into architecture, training
stage, release date and quantisation, with the vocabulary in workloads/models/_suffixes.yaml.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from sizing.catalog.config.fields import REFUSED, WRAPPERS, refused_by_name, spelled
from sizing.catalog.config.model import WIDE, read_model
from sizing.catalog.config.quantisation import SECTIONS
from sizing.catalog.files import (
    DataFile,
    data_folder,
    exists,
    expanded,
    is_file,
    is_folder,
    read_json,
    read_text,
    read_yaml,
    resolved,
    validate,
)
from sizing.catalog.shelf import (
    YAML_SUFFIXES,
    CatalogEntry,
    Found,
    Shelf,
    beginning,
    by_stem,
    chosen,
    entries,
    equal,
    hyphenated,
    is_path,
    matched_from,
    only,
    unknown,
)
from sizing.specs.errors import Fault, InputError, placed
from sizing.specs.model import Checkpoint, CheckpointRules, Model, ModelFile, NamedQuantisation, NameRules
from sizing.specs.workload import Precision

CHECKPOINTS = "_checkpoints.csv"
TIED = ("tie_word_embeddings",)
OF_STORAGE = (*SECTIONS, "expert_dtype")


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


@cache
def _by_name() -> dict[str, dict[str, str]]:
    text = read_text(data_folder("workloads") / "models" / CHECKPOINTS)
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


class Parsed(NamedTuple):
    """A checkpoint's name without organisation (`full`), also without quantisation, and reduced to the bare architecture."""

    full: str
    unquantised: str
    bare: str
    quantisation: NamedQuantisation | None


def parsed(name: str, rules: NameRules) -> Parsed:
    """Split a checkpoint's name into its parts."""
    full = hyphenated(without_organisation(name))
    organisation = name.rstrip("/").rpartition("/")[0].rpartition("/")[2].lower()
    unquantised, quantisation = _split_quantisation(full, organisation, rules)
    return Parsed(full, unquantised, _bare(unquantised, rules), quantisation)


def candidates(
    name: str, entries: Sequence[CatalogEntry], shelf: Shelf[ModelFile], rules: NameRules
) -> Sequence[CatalogEntry]:
    """The profiles that a checkpoint's name may mean: one if it is clear, none if it is unknown.

    Steps go from strict to loose, and the first step with a result decides: the name; the name without quantisation; the same
    bare architecture; for a name without organisation, its beginning.
    """
    query = parsed(name, rules)

    def whole(text: str) -> str:
        return shelf.key(without_organisation(text))

    def bare(text: str) -> str:
        return shelf.key(parsed(text, rules).bare)

    hits = equal(shelf.key(query.full), entries, whole) or equal(shelf.key(query.unquantised), entries, whole)
    if not hits:
        same = equal(shelf.key(query.bare), entries, bare)
        # Where several profiles share an architecture (a date, a quantised copy), the plain one is meant.
        plain = equal(shelf.key(query.bare), same, whole)
        hits = plain if len(plain) == 1 else same
    if not hits and "/" not in name:
        key = shelf.key(query.unquantised)
        hits = beginning(key, entries, whole) or beginning(key, entries, bare)
    return hits


def _split_quantisation(name: str, organisation: str, rules: NameRules) -> tuple[str, NamedQuantisation | None]:
    """Split off the longest known suffix. Rows of the publisher take precedence over general rows."""
    for row in sorted(rules.quantisations, key=lambda row: (-len(row.suffix), not row.organisations)):
        if row.organisations and organisation not in map(str.lower, row.organisations):
            continue
        stem = name.removesuffix(f"-{row.suffix}")
        if stem and stem != name:
            return stem, row
    return name, None


def _bare(name: str, rules: NameRules) -> str:
    words = name.split("-")
    while len(words) > 1 and (re.fullmatch(rules.release_date, words[-1]) or words[-1] in rules.stages):
        words.pop()
    first, *rest = words[1:] if words[0] in rules.prefixes and len(words) > 1 else words
    return "-".join((first, *(word for word in rest if word not in rules.stages)))


SHELF = Shelf(ModelFile, "model", "workloads", "models", "llmsize models", dots_matter=True, own="models")

CONFIG_FILE = "config.json"
QUANTISATION_FILE = "hf_quant_config.json"
INDEX_FILE = "model.safetensors.index.json"

_HUB_CACHE = re.compile(r"/models--([^/]+--[^/]+)/snapshots/[^/]+\Z")
GGUF = "gguf"
SIXTEEN_BIT = ("bf16", "fp16")
TAKEN = "all layers but embeddings, head, router and norms are taken to be in that format"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+\Z", re.ASCII)


class FoundModel(Found[Model]):
    """A model with additional facts from its profile and its name.

    `facts` is None for a user's config.json. `precision` comes from the suffix of a checkpoint's name (`-FP8-dynamic`); it is
    None if only the config decides. `name_notes` say what was taken from the name. `task` is the purpose of a checkpoint that
    does not generate.
    """

    facts: ModelFile | None = None
    precision: Precision | None = None
    name_notes: tuple[str, ...] = ()
    task: str | None = None


def with_modules() -> tuple[str, ...]:
    """The names of profiles with modules for multi-token prediction. Reads all profiles."""
    return tuple(name for name in SHELF.ids if (mtp := load_model(name).spec.mtp) is not None and mtp.modules)


def load_model(text: str) -> FoundModel:
    """The model that a name, a config.json, a model profile or a checkpoint's folder describes.

    A text with a separator that exists as a path (`./config.json`, `org/model`) is a path and not a name. A Hub id that is
    neither on disk nor in the catalogue is fetched (config.json only) if huggingface_hub is installed. Raises InputError for an
    unknown or ambiguous name and for every fault of the files.
    """
    path = expanded(text)
    if text.lower().endswith(GGUF):
        raise InputError(unknown(text, (), SHELF))
    if _means_path(text, path):
        return _from_path(path)
    found = _named(text)
    if found is not None:
        return _from_checkpoint(text, found) if isinstance(found, Checkpoint) else _from_profile(text, found)
    parts, known = parsed(text, only(NameRules)), entries(SHELF)
    hits = candidates(text, known, SHELF, only(NameRules))
    if hits:
        entry = chosen(text, hits, known, SHELF)
        begun = _begun(parts.unquantised, entry)
        return _from_profile(text, entry) if begun is None else _from_checkpoint(text, begun)
    if is_file(path / CONFIG_FILE):
        return _from_path(path)
    fault = unknown(text, known, SHELF)
    refused = refused_by_name(text)
    if refused is not None:
        message = f"{text!r} is by its name a {refused.name} model, which is not modelled: {refused.refused}"
        remedy = f"{REFUSED}; if its config.json states another model_type, pass -m ./{CONFIG_FILE}"
        fault = Fault(message, field=fault.field, remedy=remedy)
    if _HUB_ID.match(text):
        return _from_hub(text, fault)
    raise InputError(fault)


def known_id(name: str) -> str | None:
    """The id of the model that a checkpoint's whole name means; None if the name is unknown. Fetches nothing."""
    found = _named(name)
    return found.profile if isinstance(found, Checkpoint) else found and found.id


def _named(text: str) -> Checkpoint | CatalogEntry | None:
    """The published checkpoint or else the profile that a whole name means; None if the name is unknown."""
    own = published(text) or by_stem(without_organisation(text), SHELF)
    return own or published(parsed(text, only(NameRules)).unquantised, like=True) or by_part(text)


def by_part(text: str) -> CatalogEntry | None:
    """The profile whose stem is the name without its quantisation, or the bare architecture.

    `candidates` finds the same for every name of the catalogue. This is quicker, because it looks at no other file.
    """
    parts = parsed(text, only(NameRules))
    return by_stem(parts.unquantised, SHELF) or by_stem(parts.bare, SHELF)


def _means_path(text: str, path: Path) -> bool:
    """Whether a text is a path. Names have no separator and Hub ids have one. A Hub id that exists on disk is a path."""
    if text.lower().endswith((*YAML_SUFFIXES, ".json")) or text.startswith((".", "~")):
        return True
    if not is_path(text):
        return False
    return not _HUB_ID.match(text) or exists(path)


def _from_path(path: Path) -> FoundModel:
    if path.suffix.lower() in YAML_SUFFIXES:
        return _from_model_file(path, path.stem, None)
    folder, file = (path, path / CONFIG_FILE) if is_folder(path) else (path.parent, path)
    config = read_json(file)
    if "hidden_size" not in config.data and isinstance(config.data.get("quantization"), dict):
        says = "which says how weights are stored and not what the model is"
        told, allowed = f"this is a checkpoint's {QUANTISATION_FILE}, {says}", f"its folder, or its {CONFIG_FILE}"
        raise InputError(told, file=config.file, allowed=f"{allowed}; both are read together")
    if "peft_type" in config.data:
        told = "this is the config of an adapter, which says what is added to a model and not what the model is"
        raise InputError(told, file=config.file, allowed=f"the {CONFIG_FILE} of its base model, with --lora")
    name = _name_of(path, folder, config)
    model = _read_config(config, folder, name)
    return FoundModel(model, name, file, task="embed" if model.encoder else None)


def _name_of(path: Path, folder: Path, config: DataFile) -> str:
    """The name of a model on disk.

    It is the name of the file or, for a config.json, of its folder. In the Hub's cache it is the model's name. For a
    `config.json` in the working folder or from a pipe, it is the name in the config.
    """
    if path.suffix.lower() == ".json" and path.name != CONFIG_FILE:
        return path.stem
    where = resolved(folder)
    cached = _HUB_CACHE.search(where.as_posix())
    if cached is not None:
        return cached[1].replace("--", "/")
    is_named = folder == path or (path.name == CONFIG_FILE and folder.name not in ("", ".."))
    if is_named and where.name:
        return where.name
    said = config.data.get("_name_or_path")
    if isinstance(said, str) and _HUB_ID.match(said):
        return said
    kind = config.data.get("model_type")
    return f"{kind} ({CONFIG_FILE})" if isinstance(kind, str) and kind else CONFIG_FILE


def _read_config(config: DataFile, folder: Path, name: str) -> Model:
    """Read a checkpoint's config with the files next to it: ModelOpt's quantisation, the weights' index."""
    quantisation, index = folder / QUANTISATION_FILE, folder / INDEX_FILE
    with _lines_of(config):
        model = read_model(
            config.data,
            name=name,
            source=config.file,
            where=config.file,
            hf_quant_config=read_json(quantisation).data if is_file(quantisation) else None,
        )
    if not is_file(index):
        return model
    ratio = only(CheckpointRules).largest_ratio
    size = _checkpoint_bytes(index)
    if any(config.data.get(key) == WIDE for key in spelled("DTYPE")):  # 32-bit weights are served in 16 bit
        size //= 2
    return replace(model, checkpoint_bytes=size, checkpoint_index=str(index), checkpoint_ratio=ratio)


def _lines_of(document: DataFile) -> AbstractContextManager[None]:
    """Add line numbers to faults that have only this document and a field."""

    def with_line(fault: Fault) -> Fault:
        if fault.file != document.file or fault.field is None or fault.line is not None:
            return fault
        return replace(fault, line=document.line_of_key(fault.field.rpartition(".")[2]))

    return placed(with_line)


def _checkpoint_bytes(index: Path) -> int:
    """The exact size of the weights in a checkpoint's index."""
    document = read_json(index)
    metadata = document.data.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        where = ("metadata", "total_size")
        message = "must be the size of the weights in bytes, a whole number above 0"
        raise InputError(message, file=document.file, line=document.line(where), field=".".join(where))
    return size


def _from_profile(text: str, entry: CatalogEntry) -> FoundModel:
    name = without_organisation(text)
    own = hyphenated(name) in map(hyphenated, (entry.id, without_organisation(entry.name)))
    found = _from_model_file(entry.path, entry.id, matched_from(text, entry))
    return found if own else _as_sibling(text, found)


def _from_checkpoint(text: str, checkpoint: Checkpoint) -> FoundModel:
    """The model of a published checkpoint. If `text` is another name, it is a sibling in another format."""
    path = SHELF.path / f"{checkpoint.profile}.yaml"
    name, known = (hyphenated(without_organisation(each)) for each in (text, checkpoint.name))
    own = known in (name, *respelled(name))
    asked = None if hyphenated(text) == hyphenated(checkpoint.name) else text
    found = _from_model_file(path, path.stem, asked, checkpoint)
    return found if own else _as_sibling(text, found)


def _as_sibling(text: str, found_model: FoundModel) -> FoundModel:
    """A known model that stands in for an unknown one of its kind, `text`. For a Hub id, the name of the result says so.

    A name without organisation is assumed to be from the publisher of the known model.
    """
    sibling = found_model.spec.name
    whose = text if "/" in text else f"{sibling.rpartition('/')[0]}/{text}"
    quantisation = parsed(whose, only(NameRules)).quantisation
    notes = [] if quantisation is None else [f"-{quantisation.suffix} in the name: {quantisation.says}"]
    if quantisation is not None and quantisation.precision not in SIXTEEN_BIT:
        notes.append(TAKEN)
    if "/" in text:
        taken = "positions" if quantisation else "positions and weight format"
        notes.append(f"{text} is not known by itself: layers, {taken} are those of {sibling}")
        found_model = replace(found_model, spec=replace(found_model.spec, name=f"{text} as {sibling}"))
    found_model = replace(found_model, name_notes=(*found_model.name_notes, *notes))
    return found_model if quantisation is None else replace(found_model, precision=quantisation.precision)


def _from_model_file(path: Path, name: str, asked: str | None, checkpoint: Checkpoint | None = None) -> FoundModel:
    document = read_yaml(path)
    facts = validate(ModelFile, document)
    config = facts.config if checkpoint is None else config_of(checkpoint, facts.config)
    whose, source = (facts.name, facts.source) if checkpoint is None else (checkpoint.name, checkpoint.source)
    with _lines_of(document):
        model = read_model(config, name=whose, source=source, where=document.file)
    task = facts.task or ("embed" if model.encoder else None)
    if checkpoint is None:
        return FoundModel(model, name, path, asked, facts, task=task)
    guess = f"positions and weight format of {whose} are from memory: its config.json was not read"
    notes = (guess,) if checkpoint.evidence == "memory" else ()
    return FoundModel(model, name, path, asked, facts, name_notes=notes, task=checkpoint.task or task)


def _from_hub(hub_id: str, fault: Fault) -> FoundModel:
    """Fetch only a model's config.json. Raises InputError if huggingface_hub is not installed or the download fails."""
    try:
        hub = import_module("huggingface_hub")
    except ImportError:
        fetched = f"download config.json from https://huggingface.co/{hub_id} and pass -m ./config.json"
        allowed = (
            f"a name that `{SHELF.listing}` shows, or a file: {fetched}, or install llmsize[hub] to have it fetched"
        )
        raise InputError(fault if fault.remedy else replace(fault, allowed=allowed)) from None
    try:
        path = Path(hub.hf_hub_download(hub_id, CONFIG_FILE))
    except Exception as error:
        # The client raises its own, httpx's, requests' and OS errors. All mean that the download failed.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(f"{CONFIG_FILE} of {hub_id} could not be fetched: {reason}") from None
    config = read_json(path)
    source = f"https://huggingface.co/{hub_id}"
    with _lines_of(config):
        model = read_model(config.data, name=hub_id, source=source, where=config.file)
    return FoundModel(model, hub_id, path)


def _begun(name: str, profile: CatalogEntry) -> Checkpoint | None:
    """The unquantised checkpoint that begins with `name` and no profile's name does; None if different checkpoints do."""
    key = SHELF.key(without_organisation(name))
    if any(SHELF.key(without_organisation(own)).startswith(key) for own in (profile.id, profile.name)):
        return None
    plain = unquantised(lambda last: SHELF.key(last).startswith(key))
    alike = {(checkpoint.profile, checkpoint.positions) for checkpoint in plain}
    return plain[0] if len(alike) == 1 and plain[0].profile == profile.id else None
