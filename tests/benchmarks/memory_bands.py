"""Error bands of weights and pool from engine logs: the cases of tests/data/memory_cases.yaml, all of them.

    python tests/benchmarks/memory_bands.py [--write]

Prints logged over predicted at the 10th and 90th percentile, and writes the rows to hardware_profiles/_bands.yaml.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from laws.test_memory_cases import CASES, _deployed, _use, _value

from sizing.calibration.bands import rendered
from sizing.catalog import shelf
from sizing.catalog.files import data_folder
from sizing.replica.replica import memory_kind
from sizing.specs.bands import Band, Bands, MemoryKind
from sizing.specs.errors import InputError

QUANTITIES = {"weights": ("weights_gib",), "kv_cache": ("kv_cache_gib", "kv_cache_tokens", "most_num_seqs")}
KINDS: tuple[MemoryKind | None, ...] = ("hybrid", "pcie", "plain", None)
LEAST_CASES = 4  # of a kind, for a band of its own
TAIL = 0.1


class Ratio(NamedTuple):
    """Logged over predicted of one quantity of a case."""

    case: str
    kind: MemoryKind
    value: float


def main() -> None:
    """Compare every case and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write hardware_profiles/_bands.yaml")
    write = parser.parse_args().write
    bands = [band for metric, names in QUANTITIES.items() for band in bands_of(metric, names)]
    for band in bands:
        kind = band.memory or "all"
        print(f"{band.metric}, {kind}: {band.low} to {band.high}, {band.n} logged values of {band.groups} cases")
    if write:
        path = data_folder("hardware_profiles") / "_bands.yaml"
        found = shelf.only(Bands)
        others = [band for band in found.bands if band.metric not in QUANTITIES]
        path.write_text(rendered([*others, *bands]), encoding="utf-8")


def bands_of(metric: str, names: tuple[str, ...]) -> list[Band]:
    """The bands of a quantity, of each kind with enough cases and of all; what a log bounds from one side says nothing of it."""
    found: list[Ratio] = []
    for case in CASES:
        stated = [name for name in names if "value" in case.get("expect", {}).get(name, {})]
        try:
            kind = memory_kind(_deployed(case).replica) if stated else "plain"
            predicted = {name: _value(_use(case), name, case) for name in stated}
        except InputError as error:
            print(f"{case['id']} left out: {error.faults[0].message}")
            continue
        found += [
            Ratio(case["id"], kind, case["expect"][name]["value"] / predicted[name])
            for name in stated
            if predicted[name]
        ]
    by_kind = [(kind, [ratio for ratio in found if kind in (None, ratio.kind)]) for kind in KINDS]
    return [_band(metric, kind, some) for kind, some in by_kind if len({one.case for one in some}) >= LEAST_CASES]


def _band(metric: str, kind: MemoryKind | None, found: list[Ratio]) -> Band:
    low, high = np.quantile([ratio.value for ratio in found], [TAIL, 1 - TAIL])
    cases = len({ratio.case for ratio in found})
    edges = {"low": float(f"{low:.4g}"), "high": float(f"{high:.4g}"), "n": len(found), "groups": cases}
    return Band.model_validate({"metric": metric, "memory": kind, **edges})


if __name__ == "__main__":
    main()
