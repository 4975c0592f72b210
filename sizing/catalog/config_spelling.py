"""Misspelt keys of a config: unknown ones that look like a key that was looked for and not found.

Configs hold dozens of keys that are no concern of sizing, so an unknown key alone is no mistake. One that
resembles a size that is then missing, or left to its default, is: the model would silently be another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from sizing.catalog.config_fields import SECTIONS, WRAPPERS, Fields

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
