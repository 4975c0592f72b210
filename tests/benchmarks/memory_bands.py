"""Error bands of weights and pool from engine logs: the cases of tests/data/memory_cases.yaml, all of them.

    python tests/benchmarks/memory_bands.py [--write]

Prints logged over predicted at the 10th and 90th percentile, and writes the rows to hardware_profiles/_bands.yaml.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from laws.test_memory_cases import CASES, _use, _value

from sizing.calibration.bands import rendered
from sizing.catalog import shelf
from sizing.catalog.files import data_folder
from sizing.specs.bands import Band, Bands
from sizing.specs.errors import InputError

QUANTITIES = {"weights": ("weights_gib",), "kv_cache": ("kv_cache_gib", "kv_cache_tokens")}
TAIL = 0.1


def main() -> None:
    """Compare every case and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write hardware_profiles/_bands.yaml")
    write = parser.parse_args().write
    bands = [band_of(metric, names) for metric, names in QUANTITIES.items()]
    for band in bands:
        print(f"{band.metric}: {band.low} to {band.high}, {band.n} logged values of {band.groups} cases")
    if write:
        path = data_folder("hardware_profiles") / "_bands.yaml"
        others = [band for band in shelf.only(Bands).bands if band.metric not in QUANTITIES]
        path.write_text(rendered([*others, *bands]), encoding="utf-8")


def band_of(metric: str, names: tuple[str, ...]) -> Band:
    """Return the band of a quantity; what a log bounds from one side only says nothing of it."""
    found = []
    for case in CASES:
        stated = [name for name in names if "value" in case.get("expect", {}).get(name, {})]
        try:
            predicted = {name: _value(_use(case), name, case) for name in stated}
            found += [
                (case["id"], case.get("expect", {})[name]["value"] / predicted[name])
                for name in stated
                if predicted[name]
            ]
        except InputError as error:
            print(f"{case['id']} left out: {error.faults[0].message}")
    low, high = np.quantile([ratio for _, ratio in found], [TAIL, 1 - TAIL])
    return Band.model_validate(
        {
            "metric": metric,
            "low": float(f"{low:.4g}"),
            "high": float(f"{high:.4g}"),
            "n": len(found),
            "groups": len({case for case, _ in found}),
        }
    )


if __name__ == "__main__":
    main()
