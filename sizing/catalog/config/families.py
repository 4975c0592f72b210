"""Facts about model types that configs leave to the library's code: gates, tied heads, defaults, or why a type is refused.

Inside a wrapper, a published config states only what differs from the defaults of its class. Each line of
workloads/models/_families.csv describes a model type. Its `facts` hold wherever the config states nothing, its `defaults` only
inside a wrapper. Keys that no reader knows are refused by name, unless _keys.yaml says that they change no size.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from sizing.catalog.config.fields import OF_HEADS, SECTIONS, WRAPPERS, ConfigKeys, Fields, spelled
from sizing.catalog.files import data_folder, read_text
from sizing.catalog.shelf import only
from sizing.catalog.yaml import scalar
from sizing.specs.errors import Fault, InputError

MODEL_TYPE = "model_type"
UNKNOWN_TYPE = "not stated, and this model_type is not known to be tied or untied"
WITHOUT = "a config without it, if it changes no size; if it does, this model can't be sized yet (docs/models.md)"
UNKNOWN_GATE = "says nothing of a gate, and this model_type is not known"
TOWERS = ("vision_config", "audio_config")


@cache
def _idle() -> frozenset[str]:
    """Keys that a config may write beside others that decide, and that no reader then looks at."""
    return frozenset((*only(ConfigKeys).idle.split(), *WRAPPERS, *SECTIONS))


REFUSED = "it can't be sized here: take another model (llmsize models lists them, docs/models.md says what is refused)"


class Family(NamedTuple):
    """A model type: why it is refused, or the values for keys that its config does not state."""

    name: str
    refused: str
    facts: Mapping[str, Any]
    defaults: Mapping[str, Any]


@cache
def family(model_type: object) -> Family | None:
    """The family of a model type; None if the type is unknown."""
    row = _rows().get(str(model_type))
    if row is None:
        return None
    name, refused, facts, defaults = (*row, "", "")[:4]
    return Family(name, only(ConfigKeys).refused[refused] if refused else "", _pairs(facts), _pairs(defaults))


@cache
def _rows() -> dict[str, list[str]]:
    text = read_text(data_folder("workloads") / "models" / "_families.csv")
    return {row[0]: row for row in csv.reader(io.StringIO(text, newline=""))}


def _pairs(text: str) -> dict[str, Any]:
    return {key: scalar(value) for key, _, value in (pair.partition("=") for pair in text.split())}


def refused_by_name(name: str) -> Family | None:
    """The refused family whose model type begins the name of a checkpoint: whisper of `openai/whisper-large-v3`; else None."""
    words = re.split(r"[-_.\s]+", name.rpartition("/")[2].lower())
    begun, meant = ("_".join(words[:count]) for count in range(len(words), 0, -1)), only(ConfigKeys).named
    known = next((found for each in begun if (found := family(meant.get(each, each))) is not None), None)
    return known if known is not None and known.refused else None


def completed(config: Mapping[str, Any], where: str | None) -> dict[str, Any]:
    """A config completed with the facts and defaults of its model types. Raises InputError for a refused type."""
    return _completed(config, where, None)


def _completed(config: Mapping[str, Any], where: str | None, outside: frozenset[str] | None) -> dict[str, Any]:
    """Complete a config or a section inside a wrapper. `outside` holds the keys stated around it; None without a wrapper."""
    known = _family_of(config)
    if known is not None and known.refused:
        message = f"{known.name} is not modelled: {known.refused}"
        raise InputError(Fault(message, file=where, field=MODEL_TYPE, remedy=REFUSED))
    stated = (outside or frozenset()) | _stated(config)
    inner = {key: _completed(config[key], where, stated) for key in WRAPPERS if isinstance(config.get(key), Mapping)}
    towers = {key: _tower(config[key]) for key in TOWERS if isinstance(config.get(key), Mapping)}
    return _filled({**config, **inner, **towers}, known, stated, inside=outside is not None)


def _stated(config: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(key for key, value in config.items() if value is not None)


# Groups of keys for the same size. A default is not used if another key of the group is written.
OF_EXPERTS = ("EXPERTS", "EXPERTS_PER_TOKEN")
SYNONYMS = ("LAYERS", "HIDDEN", "VOCABULARY", "MAX_POSITION", *OF_HEADS, *OF_EXPERTS, "WINDOW", "WINDOW_PERIOD")


def _is_written(key: str, config: Mapping[str, Any], outside: frozenset[str]) -> bool:
    """Whether a config or its surroundings write a key or a synonym of it, even as null."""
    return any(word in config or word in outside for word in _synonyms(key))


def _synonyms(key: str) -> tuple[str, ...]:
    """The keys for the same size, or the key alone."""
    return next((words for words in map(spelled, SYNONYMS) if key in words), (key,))


def left_to_defaults(config: Mapping[str, Any]) -> frozenset[str]:
    """The keys for which a wrapped language model uses the defaults of its model type."""
    inner = [config[key] for key in WRAPPERS if isinstance(config.get(key), Mapping) and _family_of(config[key])]
    known = [found for one in inner if (found := _family_of(one)) is not None]
    below = frozenset[str]().union(*map(left_to_defaults, inner))
    outside = _stated(config)
    defaults = ((key, one) for one, found in zip(inner, known, strict=False) for key in found.defaults)
    return below | {key for key, one in defaults if not _is_written(key, one, outside)}


def _family_of(config: Mapping[str, Any]) -> Family | None:
    kind = config.get(MODEL_TYPE)
    return family(kind) if isinstance(kind, str) else None


def _tower(config: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the section of a tower, if its type names a tower. Some configs name the whole model there."""
    known = _family_of(config)
    return _filled(config, known if known is not None and known.refused else None, _stated(config), inside=True)


def _filled(config: Mapping[str, Any], known: Family | None, stated: frozenset[str], *, inside: bool) -> dict[str, Any]:
    """A config with its family's facts for unstated keys and, inside a wrapper, defaults for keys that it does not write."""
    if known is None:
        return dict(config)
    defaults = {key: value for key, value in known.defaults.items() if inside and not _is_written(key, config, stated)}
    written = stated.union(*(_stated(config[key]) for key in SECTIONS if isinstance(config.get(key), Mapping)))
    facts = {key: value for key, value in known.facts.items() if written.isdisjoint(_synonyms(key))}
    return {**config, **defaults, **facts}


# Groups of keys of which a config may write several, if they agree.
ALIKE = ("LAYERS", "HIDDEN", *OF_HEADS, *OF_EXPERTS, "SHARED_EXPERTS")


def report_contradictory(fields: Fields) -> None:
    """Record a fault for each size that is stated twice under other names, with other values."""
    for words in ALIKE:
        first = fields.stated(words)
        for key in spelled(words) if first is not None else ():
            value, taken = fields.value(key), fields.value(first or "")
            if isinstance(value, int) and isinstance(taken, int) and value != taken:
                fields.fault(key, f"{value} contradicts {first}, {taken}", "one of them")


def report_unread(fields: Fields) -> None:
    """Record a fault for each key that no reader looked at and that may change the model's size."""
    faulty = {fault.field for fault in fields.faults}
    for key in fields.names():
        known = not isinstance(key, str) or key in fields.asked or key in _idle() or key in faulty
        if not known and _may_matter(key, fields.value(key)):
            fields.fault(key, "is not read, and may change the model's size", WITHOUT)


def report_unread_lists(section: Fields) -> None:
    """Record a fault for each unread list or section of a quantization_config, because it may name modules."""
    harmless = re.compile("|".join(only(ConfigKeys).harmless_of_quantisation))
    for key, value in section.unread():
        if value and isinstance(value, list | Mapping) and not harmless.fullmatch(key):
            section.fault(key, "is not read, and may say which modules are quantised", "a config without it")


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    keys = only(ConfigKeys)
    return tuple(re.compile("|".join(patterns)) for patterns in (keys.harmless, keys.telling, keys.switches))


def _may_matter(key: str, value: object) -> bool:
    """Whether a key may change sizes: it is not known as harmless and has a value.

    Text is a value in telling keys alone, and `false` in keys that name a part which it may switch off.
    """
    harmless, telling, switches = _patterns()
    if value is None or value == "" or value == [] or value == {} or harmless.fullmatch(key):
        return False
    if value is False or value == 0:
        return value is False and bool(switches.search(key))
    return not isinstance(value, str) or bool(telling.search(key))


def is_known(fields: Fields) -> bool:
    """Whether the config's model type is in the table, or is not stated."""
    kind = fields.value(MODEL_TYPE)
    return kind is None or family(str(kind)) is not None
