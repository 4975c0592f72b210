"""Typed reading of a published config.json: synonyms of every field, wrappers, misspelt keys.

Families name the same size differently (`hidden_size`, `n_embd`, `d_model`), nest the language model in a wrapper, or keep
attention and MLP fields in separate sections. `Fields` hides that. It collects faults instead of raising at the first one, so a
user sees all of them at once. A null value counts as absent.

Configs have dozens of keys that do not matter for sizing, so an unknown key alone is no mistake. It is a mistake if it resembles
the key of a size that is missing or left to its default: the model would silently be a different one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from difflib import SequenceMatcher, get_close_matches
from functools import cache, lru_cache
from reprlib import Repr
from typing import Any, Literal

from sizing.catalog.shelf import only
from sizing.specs.errors import Fault
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

    It also states why model types are refused, which types names of checkpoints mean, which keys change no size or are `idle` beside others, and words in keys that may
    change sizes.
    """

    FILE = "workloads/models/_keys.yaml"

    words: dict[str, Text]
    algorithms: dict[str, Text]
    methods: dict[str, Text]
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
    """The keys of fields. A name in capitals stands for its keys in the table; any other name is itself a key."""
    table = only(ConfigKeys).words
    return tuple(key for name in names for key in (table[name].split() if name.isupper() else (name,)))


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

    def fault(self, field: str, message: str, allowed: str | None = None, nearest: str | None = None) -> Fault:
        """Record a fault once, and return it."""
        found = Fault(message, file=self.where, field=self._prefix + field, allowed=allowed, nearest=nearest)
        if found not in self.faults:
            self.faults.append(found)
        return found

    def note(self, text: str) -> None:
        """Record once an inference that the result should state."""
        if text not in self.notes:
            self.notes.append(text)

    def of_layer(self, index: int, layers: int) -> Fields:
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

    def inner(self, key: str, value: object) -> Fields:
        """A value inside a list or section as `Fields` that record into the same faults and notes."""
        return Fields({key: value}, self.where, self.faults, self.notes)

    def section(self, key: str) -> Fields | None:
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
