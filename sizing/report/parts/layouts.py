"""Layouts of replicas in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sizing.model.architecture import SIZES, Layout


class Sized(Protocol):
    """What states the sizes of a layout; one that does not apply may be None."""

    @property
    def tp(self) -> int | None:
        """Tensor parallelism."""

    @property
    def pp(self) -> int | None:
        """Pipeline parallelism."""

    @property
    def ep(self) -> int | None:
        """Expert parallelism."""

    @property
    def dp(self) -> int | None:
        """Attention data parallelism."""

    @property
    def cp(self) -> int | None:
        """Context parallelism."""

    @property
    def dcp(self) -> int | None:
        """Decode context parallelism."""


def layout(of: Sized) -> str:
    """Write a layout with the sizes that are not 1."""
    return str(Layout(of.tp or 1, of.pp or 1, of.dp or 1, of.ep or 1, of.cp or 1, of.dcp or 1))


def sizes(of: Layout) -> dict[str, int]:
    """Return the sizes of a layout by name, as records have them."""
    return {name: getattr(of, name) for name in SIZES}


def layout_in(row: Mapping[str, Any]) -> str:
    """Write the layout whose sizes stand in a row under their names."""
    return str(Layout(**{name: row[name] or 1 for name in SIZES}))
