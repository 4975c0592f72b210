"""Separate pools for prefill and decode, as a user asks for them, and what is assumed of the hand-over between them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sizing.specs.base import Spec, Text

SEARCHED = "auto"  # both pools as the search finds them
POOLS_FORM = (
    "auto, or prefill=POOL,decode=POOL with POOL = [COUNTx][GPU][:LAYOUT], as prefill=h100-sxm:tp2,decode=h200-sxm:tp4 "
    "or prefill=3xtp2,decode=tp4pp2"
)
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
        if not marked or phase not in PHASES or phase in found:
            raise ValueError(f"{part.strip()!r} names no pool; the form is {POOLS_FORM}")
        found[phase] = _pool(pool)
    return found


Size = Annotated[int, Field(gt=0, le=1024, strict=True)]


class Pool(Spec):
    """One pool: GPU type and layout of its replicas, and how many; the search picks what is absent."""

    gpu: Text | None = None
    replicas: Annotated[int, Field(gt=0, le=4096, strict=True)] | None = None
    tp: Size | None = None
    pp: Size | None = None
    ep: Size | None = None
    dp: Size | None = None
    cp: Size | None = None
    dcp: Size | None = None


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
