"""Separate pools for prefill and decode, as a user asks for them, and what is assumed of the hand-over between them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sizing.errors import nearest
from sizing.specs.base import MOST_GROUP, GroupSize, Spec, Text

SEARCHED = "auto"  # both pools as the search finds them
POOLS_FORM = (
    "auto, or prefill=POOL,decode=POOL with POOL = [COUNTx][GPU][:LAYOUT], as prefill=h100-sxm:tp2,decode=h200-sxm:tp4 "
    "or prefill=3xtp2,decode=tp4pp2"
)
MOST_REPLICAS = 4096
PHASES = ("prefill", "decode")
_COUNTED = re.compile(r"(\d+)x(.*)", re.DOTALL)
_LAYOUT = re.compile(r"(?:(?:tp|pp|ep|dp|cp|dcp)\d+)+")
_SIZE = re.compile(r"(tp|pp|ep|dp|dcp|cp)(\d+)")


def _pool(text: str) -> dict[str, Any]:
    """Read `2xh100-sxm:tp4pp2`, any part of it absent."""
    found: dict[str, Any] = {}
    rest = text.strip()
    if counted := _COUNTED.fullmatch(rest):
        found["replicas"], rest = int(counted[1]), counted[2]
        if not 0 < found["replicas"] <= MOST_REPLICAS:
            raise ValueError(f"{text.strip()!r} counts {counted[1]} replicas, from 1 to {MOST_REPLICAS:,} are possible")
    name, _, layout = rest.rpartition(":")
    if not name and not layout:
        return found
    if not _LAYOUT.fullmatch(layout.strip().lower()):
        if name:
            raise ValueError(f"{layout!r} is no layout such as tp4pp2; the form is {POOLS_FORM}")
        return found | {"gpu": layout.strip()}
    sizes = _SIZE.findall(layout.lower())
    if len({size for size, _ in sizes}) < len(sizes):
        raise ValueError(f"{layout!r} states a size twice; the form is {POOLS_FORM}")
    for size, count in sizes:
        if not 0 < int(count) <= MOST_GROUP:
            raise ValueError(f"{text.strip()!r} has {size} {count}, from 1 to {MOST_GROUP:,} are possible")
    found |= {size: int(count) for size, count in sizes}
    return found | ({"gpu": name.strip()} if name.strip() else {})


def read_pools(value: Any) -> Any:
    """Accept `auto` and `prefill=h100-sxm:tp2,decode=h200-sxm:tp4`, either pool absent where the search picks it."""
    if not isinstance(value, str):
        return value
    if value.strip().lower() == SEARCHED:
        return {}
    found: dict[str, Any] = {}
    for part in value.split(","):
        phase, marked, pool = part.partition("=")
        phase = phase.strip().lower()
        if phase in found:
            raise ValueError(f"{phase} is named twice; the form is {POOLS_FORM}")
        if not marked or phase not in PHASES:
            near = nearest(phase, PHASES)
            meant = f", did you mean {near}?" if near else ""
            raise ValueError(f"{part.strip()!r} names no pool{meant}; the form is {POOLS_FORM}")
        if not pool.strip():
            raise ValueError(f"{phase} has no pool; the form is {POOLS_FORM}")
        found[phase] = _pool(pool)
    return found


class Pool(Spec):
    """One pool: GPU type and layout of its replicas, and how many; the search picks what is absent."""

    gpu: Text | None = None
    replicas: Annotated[int, Field(gt=0, le=MOST_REPLICAS, strict=True)] | None = None
    tp: GroupSize | None = None
    pp: GroupSize | None = None
    ep: GroupSize | None = None
    dp: GroupSize | None = None
    cp: GroupSize | None = None
    dcp: GroupSize | None = None


class Disaggregate(Spec):
    """Prefill and decode on GPUs of their own; a pool that is not described is searched for."""

    prefill: Pool = Pool()
    decode: Pool = Pool()


Pools = Annotated[Disaggregate, BeforeValidator(read_pools)]


class HandOver(Spec):
    """The file hardware_profiles/_disaggregation.yaml: how a prompt's cache goes from one pool to the other.

    `by_layer`: a layer's cache is sent while later ones are computed, so only what that does not hide delays the first token;
    otherwise all of it is sent when prefill is over. `needs` says what engines must have.
    """

    by_layer: Annotated[bool, Field(strict=True)]
    needs: Text
    source: Text
    date: Text
