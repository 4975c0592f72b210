"""Typed reading of a published config.json.

Synonyms, wrappers, and one fault for each field that is missing or wrong.

Families name the same size differently (`hidden_size`, `n_embd`, `d_model`), nest the language model in a
wrapper, or keep attention and MLP fields in sections of their own. `Fields` hides that and collects faults
instead of raising at the first, so that a user sees all of them at once. A null value counts as absent.

Misspelt keys of a config: unknown ones that look like a key that was looked for and not found.

Configs hold dozens of keys that are no concern of sizing, so an unknown key alone is no mistake. One that
resembles a size that is then missing, or left to its default, is: the model would silently be another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

from sizing.specs.errors import Fault

# Sections that hold the language model inside a multimodal config, and those that hold fields of one block.
WRAPPERS = ("thinker_config", "text_config", "llm_config", "language_config", "language_model_config")
SECTIONS = ("attn_config", "ffn_config")
# No model comes near this; larger values are typing errors and would only overflow later.
LARGEST = 2**40
SMALLEST_STAND_IN = 1


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


def shown(value: Any) -> str:
    """Return a wrong value as a message shows it: long texts, numbers and lists are cut."""
    return _SHORT.repr(value)


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return one mapping: the innermost language model's values over the wrapper's, sections below both."""
    merged = dict(config)
    for wrapper in WRAPPERS:
        inner = config.get(wrapper)
        if isinstance(inner, Mapping):
            own = flattened(inner)
            merged = {
                **merged,
                **{key: value for key, value in own.items() if value is not None or key not in merged},
            }
    for section in SECTIONS:
        inner = merged.get(section)
        if isinstance(inner, Mapping):
            merged = {**inner, **merged}
    return merged


class Fields:
    """A config to be read by field; `faults` and `notes` gather what was wrong and what was inferred.

    Reading leaves traces, by which misspelt keys are found: `asked` holds every key looked for, `unmet` those
    of which neither the key nor a synonym has a value, `missing` the faults of required fields by their keys.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        where: str | None,
        faults: list[Fault] | None = None,
        notes: list[str] | None = None,
        prefix: str = "",
    ) -> None:
        """Wrap a config; `where` is the file that faults name, `prefix` the section that fields lie in."""
        self._values = flattened(config)
        self.where = where
        self._prefix = prefix
        self.faults: list[Fault] = [] if faults is None else faults
        self.notes: list[str] = [] if notes is None else notes
        self.asked: set[str] = set()
        self.unmet: dict[str, None] = {}
        self.missing: dict[tuple[str, ...], Fault] = {}

    def fault(self, field: str, message: str, allowed: str | None = None, nearest: str | None = None) -> Fault:
        """Record a fault once, and return it."""
        found = Fault(message, file=self.where, field=self._prefix + field, allowed=allowed, nearest=nearest)
        if found not in self.faults:
            self.faults.append(found)
        return found

    def note(self, text: str) -> None:
        """Record an inference that the result should state, once."""
        if text not in self.notes:
            self.notes.append(text)

    def has(self, key: str) -> bool:
        """Return whether the key is written, null or not."""
        self.stated(key)
        return key in self._values

    def stated(self, *keys: str) -> str | None:
        """Return the first of the keys that has a value, or None."""
        found = next((key for key in keys if self._values.get(key) is not None), None)
        self.asked.update(keys)
        if found is None:
            self.unmet.update(dict.fromkeys(keys))
        return found

    def names(self) -> tuple[str, ...]:
        """Return every key, in the order written."""
        return tuple(self._values)

    def value(self, *keys: str) -> Any:
        """Return the value of the first key that has one, or None, unchecked."""
        key = self.stated(*keys)
        return None if key is None else self._values[key]

    def optional_integer(self, *keys: str, least: int = 0) -> int | None:
        """Return a whole number not below `least`, or None where no key has a value.

        A wrong value is a fault.
        """
        key = self.stated(*keys)
        if key is None:
            return None
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            self.fault(key, f"{shown(value)} is not a size", f"a whole number from {least} to 2^40")
            return None
        return value

    def integer(self, *keys: str) -> int:
        """Return a whole number above zero.

        Where it is missing or wrong, record a fault and return a stand-in.
        """
        if self.stated(*keys) is None:
            others = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
            self.missing[keys] = self.fault(keys[0], "missing", f"a whole number above zero{others}")
            return SMALLEST_STAND_IN
        return self.optional_integer(*keys, least=1) or SMALLEST_STAND_IN

    def flag(self, *keys: str) -> bool | None:
        """Return true or false, or None where no key has a value; anything else is a fault."""
        key = self.stated(*keys)
        if key is None:
            return None
        value = self._values[key]
        if not isinstance(value, bool):
            self.fault(key, f"{shown(value)} is not a switch", "true or false")
            return None
        return value

    def text(self, *keys: str) -> str | None:
        """Return a string, or None where no key has a value; anything else is a fault."""
        key = self.stated(*keys)
        if key is None:
            return None
        value = self._values[key]
        if not isinstance(value, str):
            self.fault(key, f"{shown(value)} is not a text")
            return None
        return value

    def sequence(self, *keys: str) -> tuple[Any, ...] | None:
        """Return a list, or None where no key has a value; anything else is a fault."""
        key = self.stated(*keys)
        if key is None:
            return None
        value = self._values[key]
        if not isinstance(value, list | tuple):
            self.fault(key, f"{shown(value)} is not a list")
            return None
        return tuple(value)

    def section(self, key: str) -> Fields | None:
        """Return a nested section that records into the same faults and notes.

        Or None where there is none.
        """
        value = self.value(key)
        if not isinstance(value, Mapping):
            return None
        return Fields(value, self.where, self.faults, self.notes, f"{self._prefix}{key}.")


# Above the most alike pair of published keys that mean different things (q_lora_rank and kv_lora_rank: 0.87).
SAME_KEY = 0.88
# Where a required field is missing anyway, a looser likeness still helps.
LIKELY_KEY = 0.8


def report_misspelt(fields: Fields) -> None:
    """Record a fault for each misspelt key, once all other fields have been read.

    The fault of a missing field turns into one at the key that was written in its place, so that it has a line.
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
    for plain, written in unknown.items():
        pair = _most_alike({plain: written}, [key for key in fields.unmet if not fields.has(key)], SAME_KEY)
        if pair is not None:
            fields.fault(written, "unknown key, and the one that it resembles is not stated", nearest=pair[1])


def _plain(key: str) -> str:
    """Return a key without the differences of style: case, hyphens, spaces around it."""
    return key.strip().lower().replace("-", "_")


def _most_alike(written: Mapping[str, str], known: Sequence[str], cutoff: float) -> tuple[str, str] | None:
    """Return the written key and the known one that are most alike, None where no pair reaches the cutoff."""
    for key in known:
        hits = get_close_matches(key, list(written), n=1, cutoff=cutoff)
        if hits:
            best = get_close_matches(hits[0], known, n=1, cutoff=cutoff)
            return written[hits[0]], best[0] if best else key
    return None
