"""Typed reading of a published config.json: synonyms of every field, wrappers, misspelt keys, what a model type leaves out.

Families name the same size differently (`hidden_size`, `n_embd`, `d_model`), nest the language model in a wrapper, or keep
attention and MLP fields in separate sections. `Fields` hides that. It collects faults instead of raising at the first one, so a
user sees all of them at once. A null value counts as absent.

Configs have dozens of keys that do not matter for sizing, so an unknown key alone is no mistake. It is a mistake if it resembles
the key of a size that is missing or left to its default: the model would silently be a different one.

Inside a wrapper, a published config states only what differs from the defaults of its class. Each line of
workloads/models/_families.csv describes a model type. Its `facts` hold wherever the config states nothing, its `defaults` only
inside a wrapper. Keys that no reader knows are refused by name, unless _keys.yaml says that they change no size.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from difflib import SequenceMatcher, get_close_matches
from functools import cache, lru_cache
from reprlib import Repr
from typing import Any, Literal, NamedTuple

from sizing.catalog.files import data_folder, read_text
from sizing.catalog.shelf import only
from sizing.catalog.yaml import scalar
from sizing.specs.errors import Fault, InputError
from sizing.specs.model import Role
from sizing.specs.values import OneFile, Sourced, Text

# Sections with the language model of a multimodal config, and sections with the fields of one block.
WRAPPERS = ("thinker_config", "text_config", "llm_config", "language_config", "language_model_config")
SECTIONS = ("attn_config", "ffn_config")
# No model comes near this. Larger values are typing errors and would only overflow later.
LARGEST = 2**40
SMALLEST_STAND_IN = 1


# Sizes that some configs state as a list with one value per layer.
OF_HEADS, OF_WIDTHS = ("Q_HEADS", "KV_HEADS", "HEAD_DIM"), ("DENSE_WIDTH", "EXPERT_WIDTH")
BY_LAYER = (*OF_HEADS, *OF_WIDTHS, "EXPERTS_PER_TOKEN", "SHARED_EXPERTS", "EXPERTS")
OF_ONE_LAYER = "per_layer_config"  # values that differ in single layers, by layer number (Transformers 5)


Mixer = Literal["full", "window", "chunk", "linear", "ssm", "conv", "cross", "bidirectional", "compressed"]


class ConfigKeys(OneFile, Sourced):
    """The file workloads/models/_keys.yaml: the names of fields, formats, projections and layers in configs.

    It also has the words of quantised modules, why model types are refused, and which types names of checkpoints mean. Some keys
    change no size, some are `idle` beside others, and some words in keys may change sizes.
    """

    FILE = "workloads/models/_keys.yaml"

    words: dict[str, Text]
    algorithms: dict[str, Text]
    weight_only: tuple[Text, ...]
    cache_algorithms: dict[str, Text]
    expert_types: dict[str, str]
    methods: dict[str, Text]
    roles: dict[Role | Literal["none"], Text]
    outside: tuple[Text, ...]
    projections: dict[str, Text]
    layer_types: dict[str, Mixer]
    refused: dict[str, Text]
    named: dict[str, Text]
    harmless: tuple[Text, ...]
    harmless_of_quantisation: tuple[Text, ...]
    telling: tuple[Text, ...]
    switches: tuple[Text, ...]
    idle: Text


@cache
def spelled(*names: str) -> tuple[str, ...]:
    """The keys of fields. A name of the table stands for its keys; any other name is itself a key."""
    table = only(ConfigKeys).words
    return tuple(key for name in names for key in (table[name].split() if name in table else (name,)))


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


def shown(value: Any) -> str:
    """A wrong value, formatted for a message. Long texts, numbers and lists are cut."""
    return _SHORT.repr(value)


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as one mapping. Values of the innermost language model override the wrapper's, and sections are merged."""
    merged = dict(config)
    for wrapper in WRAPPERS:
        inner = config.get(wrapper)
        if isinstance(inner, Mapping):
            own = flattened(inner)
            merged |= {key: value for key, value in own.items() if value is not None or key not in merged}
    for section in SECTIONS:
        inner = merged.get(section)
        if isinstance(inner, Mapping):
            merged = {**inner, **merged}
    return merged


class Fields:
    """A config that is read field by field. `faults` collects mistakes, `notes` collects inferences.

    Records of reading help to find misspelt keys. `asked` holds every key looked for. `unmet` holds the keys without a value for
    the key or a synonym. `missing` holds the faults of required fields by their keys. What was found is kept: layers ask alike.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        where: str | None,
        faults: list[Fault] | None = None,
        notes: list[str] | None = None,
        prefix: str = "",
    ) -> None:
        """Wrap `config`. `where` is the file that faults name, `prefix` the section of the fields."""
        self._values = flattened(config)
        self.where = where
        self._prefix = prefix
        self.faults: list[Fault] = [] if faults is None else faults
        self.notes: list[str] = [] if notes is None else notes
        self.asked: set[str] = set()
        self.unmet: dict[str, None] = {}
        self.missing: dict[tuple[str, ...], Fault] = {}
        self._found: dict[tuple[str, ...], str | None] = {}
        self._read: dict[tuple[tuple[str, ...], str, str | None], Any] = {}

    def fault(self, field: str, message: str, *told: str | None, **named: str | None) -> Fault:
        """Record a fault once, and return it."""
        found = Fault(message, self.where, None, self._prefix + field, *told, **named)
        if found not in self.faults:
            self.faults.append(found)
        return found

    def note(self, text: str) -> None:
        """Record once an inference that the result should state."""
        if text not in self.notes:
            self.notes.append(text)

    def of_layer(self, index: int, layers: int) -> "Fields":
        """The fields of one layer. A list with a size for each layer is replaced by the layer's size."""
        own: dict[str, object] = {}
        for key in spelled(*BY_LAYER):
            value = self._values.get(key)
            if isinstance(value, list | tuple) and value:
                if len(value) != layers:
                    self.fault(key, f"{len(value)} sizes do not agree with {layers} layers")
                else:
                    own[key] = value[index]
        by_layer = self.value(OF_ONE_LAYER)
        for number, stated in by_layer.items() if isinstance(by_layer, Mapping) else ():
            if str(number).isdecimal() and int(number) == index and isinstance(stated, Mapping):
                own |= stated
        if not own:
            return self
        view = copy(self)
        view._values, view._found, view._read = {**self._values, **own}, {}, {}
        return view

    def has(self, key: str) -> bool:
        """Whether the key is written, even as null."""
        self.stated(key)
        return key in self._values

    def stated(self, *keys: str) -> str | None:
        """The first of the keys that has a value, or None."""
        if keys in self._found:
            return self._found[keys]
        known = spelled(*keys)
        found = next((key for key in known if self._values.get(key) is not None), None)
        self.asked.update(known)
        if found is None:
            self.unmet.update(dict.fromkeys(known))
        self._found[keys] = found
        return found

    def passed(self, *keys: str) -> None:
        """Record keys as read that change nothing beside what was read."""
        self.asked.update(spelled(*keys))

    def names(self) -> tuple[str, ...]:
        """Every key, in its order in the file."""
        return tuple(self._values)

    def unread(self) -> tuple[tuple[str, Any], ...]:
        """The keys that no reader has looked for, with their values."""
        return tuple((key, value) for key, value in self._values.items() if key not in self.asked)

    def value(self, *keys: str) -> Any:
        """The value of the first key that has one, or None, unchecked."""
        key = self.stated(*keys)
        return None if key is None else self._values[key]

    def _typed(self, keys: tuple[str, ...], fits: Callable[[Any], bool], kind: str, allowed: str | None = None) -> Any:
        """A value of the wanted type. A list of equal sizes is their size."""
        asked = (keys, kind, allowed)
        if asked not in self._read:
            self._read[asked] = self._checked(keys, fits, kind, allowed)
        return self._read[asked]

    def _checked(self, keys: tuple[str, ...], fits: Callable[[Any], bool], kind: str, allowed: str | None) -> Any:
        key = self.stated(*keys)
        value = None if key is None else self._values[key]
        if kind == "size" and isinstance(value, list | tuple) and value and all(item == value[0] for item in value):
            value = value[0]
        if key is None or fits(value):
            return value
        self.fault(key, f"{shown(self._values[key])} is not a {kind}", allowed)
        return None

    def optional_integer(self, *keys: str, least: int = 0) -> int | None:
        """A whole number of at least `least`; None if no key has a value. A wrong value is a fault."""

        def fits(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST

        found: int | None = self._typed(keys, fits, "size", f"a whole number from {least} to 2^40")
        return found

    def integer(self, *keys: str) -> int:
        """A whole number above zero. If it is missing or wrong, record a fault and return a placeholder."""
        keys = spelled(*keys)
        if self.stated(*keys) is None:
            others = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
            self.missing[keys] = self.fault(keys[0], "missing", f"a whole number above zero{others}")
            return SMALLEST_STAND_IN
        return self.optional_integer(*keys, least=1) or SMALLEST_STAND_IN

    def integers(self, *names: str) -> dict[str, Any]:
        """Whole numbers above zero by name. A name is itself the key, or in lower case that of the table of keys."""
        table = only(ConfigKeys).words
        return {name: self.integer(name.upper() if name.upper() in table else name) for name in names}

    def flag(self, *keys: str) -> bool | None:
        """True or false; None if no key has a value. Anything else is a fault."""
        found: bool | None = self._typed(keys, lambda value: isinstance(value, bool), "switch", "true or false")
        return found

    def text(self, *keys: str) -> str | None:
        """A string; None if no key has a value. Anything else is a fault."""
        found: str | None = self._typed(keys, lambda value: isinstance(value, str), "text")
        return found

    def sequence(self, *keys: str) -> tuple[Any, ...] | None:
        """A list; None if no key has a value. Anything else is a fault."""
        found = self._typed(keys, lambda value: isinstance(value, list | tuple), "list")
        return None if found is None else tuple(found)

    def inner(self, key: str, value: object) -> "Fields":
        """A value inside a list or section as `Fields` that record into the same faults and notes."""
        return Fields({key: value}, self.where, self.faults, self.notes)

    def section(self, key: str) -> "Fields | None":
        """A nested section that records into the same faults and notes; None without one. Anything else is a fault."""
        value = self._typed((key,), lambda value: isinstance(value, Mapping), "section", "fields in braces")
        if value is None:
            return None
        return Fields(value, self.where, self.faults, self.notes, f"{self._prefix}{key}.")


# Above the most similar pair of published keys with different meanings (q_lora_rank and kv_lora_rank: 0.87).
SAME_KEY = 0.88
# If a required field is missing anyway, a looser similarity still helps.
LIKELY_KEY = 0.8


def report_misspelt(fields: Fields) -> None:
    """Record a fault for each misspelt key. To be called after all other fields have been read.

    The fault of a missing field moves to the misspelt key, so that it has a line.
    """
    fields.stated(*WRAPPERS), fields.stated(*SECTIONS)
    unknown = {_plain(key): key for key in fields.names() if isinstance(key, str) and key not in fields.asked}
    for keys, fault in fields.missing.items():
        pair = _most_alike(unknown, keys, LIKELY_KEY)
        if pair is not None and fault in fields.faults:
            written, meant = pair
            moved = replace(fault, message=f"unknown key, and {keys[0]} is missing", field=written, nearest=meant)
            fields.faults[fields.faults.index(fault)] = moved
            unknown.pop(_plain(written))
    absent = [key for key in fields.unmet if not fields.has(key)]
    for plain, written in unknown.items():
        pair = _most_alike({plain: written}, absent, SAME_KEY)
        if pair is not None:
            fields.fault(written, "unknown key, and the one that it resembles is not stated", nearest=pair[1])


def _plain(key: str) -> str:
    return key.strip().lower().replace("-", "_")


def _most_alike(written: Mapping[str, str], known: Sequence[str], cutoff: float) -> tuple[str, str] | None:
    """The most similar pair of a written and a known key; None if no pair reaches `cutoff`."""
    for key in known:
        hit = max(written, key=lambda word: _likeness(word, key), default=None)
        if hit is not None and _likeness(hit, key) >= cutoff:
            best = get_close_matches(hit, known, n=1, cutoff=cutoff)
            return written[hit], best[0] if best else key
    return None


@lru_cache(maxsize=2**18)
def _likeness(word: str, key: str) -> float:
    """The similarity of two keys, 0 to 1; 0 for words too unequal in length to be alike."""
    if 2 * min(len(word), len(key)) < LIKELY_KEY * (len(word) + len(key)):
        return 0.0
    matcher = SequenceMatcher(None, word, key)
    return matcher.ratio() if matcher.quick_ratio() >= LIKELY_KEY else 0.0


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


def _filled(
    config: Mapping[str, Any], family: Family | None, stated: frozenset[str], *, inside: bool
) -> dict[str, Any]:
    """A config with its family's facts for unstated keys and, inside a wrapper, defaults for keys that it does not write."""
    if family is None:
        return dict(config)
    defaults = {key: value for key, value in family.defaults.items() if inside and not _is_written(key, config, stated)}
    written = stated.union(*(_stated(config[key]) for key in SECTIONS if isinstance(config.get(key), Mapping)))
    facts = {key: value for key, value in family.facts.items() if written.isdisjoint(_synonyms(key))}
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
                fields.fault(key, f"{value} contradicts {first}, {taken}", remedy="state one of them")


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
