"""Attention kinds, one file each: gqa (with and without windows, or bidirectional), mla, linear, ssm and others.

A file has the functions of `Kind`; `pick` imports the file of a layer's kind. To add a kind, add a file, and its type in
`sizing.specs.model`.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Protocol, cast

from sizing.model.attention.terms import Cache, Matrix, Numeric, Work


class Kind(Protocol):
    """The functions of each attention file. `mixer` is the spec of this kind, `tp` the number of tensor-parallel GPUs."""

    def matrices(self, mixer: Any, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
        """The weight matrices of one layer on one GPU."""

    def cache(self, mixer: Any, tp: int, kv_bytes: float) -> Cache:
        """The cache of one layer on one GPU. A value takes `kv_bytes` bytes."""

    def decode(self, mixer: Any, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric) -> Work:
        """The work of one decode step of one layer on one GPU, over the whole batch."""

    def prefill(
        self, mixer: Any, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
    ) -> Work:
        """The work of `tokens` new prompt tokens in each of `sequences` prompts with `prior_tokens` cached."""

    def small_kernels(self, mixer: Any, tp: int) -> tuple[tuple[str, float], ...]:
        """Small kernels of one layer on one GPU, each with the values that it moves per token.

        They exclude projections and attention, and the rotary embedding and cache write that every kind has.
        """

    def exchanged(self, mixer: Any) -> tuple[int, int, int]:
        """(query heads, values per query, values per output) that GPUs with parts of one cache exchange in decode.

        Raises ValueError if a cache cannot be split into parts.
        """

    def why_not(self, mixer: Any, tp: int) -> str | None:
        """The reason why this kind cannot be split over `tp` GPUs, or None."""


@cache
def pick(kind: str) -> Kind:
    """Import only the module of attention kind `kind`."""
    name = "gqa" if kind in ("sliding_window", "bidirectional") else kind
    return cast(Kind, importlib.import_module(f"sizing.model.attention.{name}"))
