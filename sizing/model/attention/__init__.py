"""Attention kinds, one file each: gqa, sliding_window, mla, linear, ssm.

A file offers the functions of `Kind`; `pick` imports the one that a layer names. Adding a kind is adding a file
(and its type in `sizing.specs.model`).
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Protocol, cast

from sizing.model.attention.terms import Cache, Matrix, Numeric, Work


class Kind(Protocol):
    """What each attention file offers; `mixer` is that kind's own spec, `tp` the tensor-parallel GPUs."""

    def matrices(self, mixer: Any, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
        """Return the weight matrices of one layer on one GPU."""

    def cache(self, mixer: Any, tp: int, kv_bytes: float) -> Cache:
        """Return what one layer caches on one GPU, `kv_bytes` a value."""

    def decode(self, mixer: Any, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric) -> Work:
        """Return the work of one decode step of one layer on one GPU, over the whole batch."""

    def prefill(
        self, mixer: Any, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
    ) -> Work:
        """Return the work of `tokens` new prompt tokens in each of `sequences` prompts with `prior_tokens` cached."""

    def beside(self, mixer: Any, tp: int) -> tuple[tuple[str, float], ...]:
        """Return the small kernels of one layer on one GPU beside projections and attention: names, values moved a token.

        Rotary embedding and cache write are every kind's own and not among them.
        """

    def exchanged(self, mixer: Any) -> tuple[int, int, int]:
        """Return (query heads, values of a query, of an output) that GPUs with parts of one cache exchange in decode.

        Raises ValueError where a cache has no parts.
        """

    def why_not(self, mixer: Any, tp: int) -> str | None:
        """Return why this kind cannot be split over `tp` GPUs, or None when it can."""


@cache
def pick(kind: str) -> Kind:
    """Return the module of an attention kind, importing only that one."""
    return cast(Kind, importlib.import_module(f"sizing.model.attention.{kind}"))
