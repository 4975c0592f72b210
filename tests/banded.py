"""Error bands in place of the file's, for tests that need known ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from sizing.catalog import shelf
from sizing.specs.bands import Band, Bands, PublishedRuns

METRICS = ("ttft", "itl", "e2e", "throughput", "weights", "kv_cache")


def band(metric: str, low: float, high: float, **conditions: Any) -> Band:
    """A band of 40 measurements."""
    return Band.model_validate({"metric": metric, "low": low, "high": high, "n": 40, "groups": 5, **conditions})


def every(low: float, high: float, **conditions: Any) -> tuple[Band, ...]:
    """One band for all metrics."""
    return tuple(band(metric, low, high, **conditions) for metric in METRICS)


def use(monkeypatch: pytest.MonkeyPatch, bands: Iterable[Band]) -> None:
    """Let the catalogue say these bands, and no published runs, whose ranges would come first."""
    of_test = {"source": "a test", "date": "2026-01-01"}
    said: dict[type, Any] = {
        Bands: Bands(bands=tuple(bands), **of_test),
        PublishedRuns: PublishedRuns(groups=(), runs="-", least_groups=3, **of_test).model_copy(update={"runs": ""}),
    }
    for spec_type, spec in said.items():
        monkeypatch.setitem(shelf.SINGLE_FILES, spec_type, spec)
