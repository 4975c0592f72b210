"""`python -m sizing.calibration.bands`: the accuracy of predictions, from measured rows and tested on groups left out.

It finds corrections of step times that centre the predictions of a class, and error bands around the corrected predictions. It
also writes the table of published runs, which gives the number of GPUs for a stated confidence.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from sizing.calibration import fit
from sizing.calibration.command import processes, run
from sizing.calibration.corrections import (
    Seen,
    centred_table,
    class_of,
    corrections_of,
    corrections_table,
    observe,
    rendered_corrections,
    rendered_runs,
)
from sizing.calibration.coverage import tail_of as tail_of_runs
from sizing.calibration.refit import sample
from sizing.catalog import shelf
from sizing.catalog.files import data_folder
from sizing.catalog.measured import MeasuredRow, read_measured
from sizing.catalog.runs import ends_of
from sizing.evidence.errors import BAND_METRICS
from sizing.specs.bands import Band, BandMetric, Bands, PublishedRuns, Situation, find
from sizing.specs.calibration import BandRules, Calibration
from sizing.specs.errors import InputError

# The fields of a band's class, the narrowest class first. A number without a narrow band uses a wider one.
CLASSES: tuple[tuple[str, ...], ...] = (
    ("mode", "vendor", "engine", "architecture", "kind", "load"),
    ("mode", "vendor", "engine", "kind", "load"),
    ("mode", "vendor", "engine", "architecture", "kind"),
    ("mode", "vendor", "engine", "kind"),
    ("mode", "vendor", "kind", "load"),
    ("mode", "vendor", "kind"),
    ("mode", "vendor"),
)


class Ratio(NamedTuple):
    """Measured over predicted of one metric of one row, with its class and group."""

    metric: BandMetric
    situation: Situation
    group: str
    value: float


def main() -> None:
    """Predict the rows, find corrections and bands, report, write."""
    parser = argparse.ArgumentParser(prog="python -m sizing.calibration.bands", description="Find error bands.")
    parser.add_argument("files", nargs="+", type=Path, help="measured rows, as for llmsize validate")
    parser.add_argument("--jobs", type=processes, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write the files of corrections, bands and runs")
    options = parser.parse_args()
    calibration = shelf.only(Calibration)
    rows = chosen(read_measured(options.files).rows, calibration)
    corrections, seen = corrections_of(observe(rows, options.jobs), calibration.corrections)
    console = Console(width=120)
    for shown in (corrections_table(corrections), centred_table(seen)):
        console.print(shown)
    bands, table = banded(ratios(seen), calibration)
    console.print(table)
    if not bands:
        least = f"{calibration.bands.least_rows} rows of {calibration.bands.least_groups} groups"
        raise InputError(f"no class has the {least} that a band takes", field="rows")
    if options.write:
        groups = calibration.corrections.least_groups
        plain = PublishedRuns.model_validate(yaml.safe_load(rendered_runs(seen, groups, 0.0)))
        memory = [band for band in shelf.only(Bands).bands if band.metric not in BAND_METRICS.values()]
        texts = {"_corrections.yaml": rendered_corrections(corrections), "_bands.yaml": rendered([*bands, *memory])}
        texts["_runs.yaml"] = rendered_runs(seen, groups, tail_of_runs(plain, calibration.bands))
        for name, text in texts.items():
            (data_folder("hardware_profiles") / name).write_text(text, encoding="utf-8")


def chosen(rows: Sequence[MeasuredRow], calibration: Calibration) -> list[MeasuredRow]:
    """The rows to learn from: some of each run, spread over its loads, without excluded rows."""
    ruled_out = tuple(rule for rule in calibration.not_fitted if rule.is_doubt)  # all GPUs' rows are kept here
    found = []
    for mode, number in calibration.bands.rows_per_run.items():
        rules = calibration.model_copy(update={"not_fitted": ruled_out, "rows_per_group": number})
        found += sample([row for row in rows if row.mode == mode], rules)
    return found


def banded(ratios: Sequence[Ratio], calibration: Calibration) -> tuple[list[Band], Table]:
    """The bands of every metric and mode, and a table that shows how well they cover groups left out."""
    bands: list[Band] = []
    table = Table("metric", "mode", "rows", "groups", "tail", "covered, groups left out", title="bands")
    for metric, mode in sorted({(ratio.metric, ratio.situation.mode) for ratio in ratios}):
        own = [ratio for ratio in ratios if (ratio.metric, ratio.situation.mode) == (metric, mode)]
        tail, covered = tail_of(own, calibration)
        bands += bands_of(own, tail, calibration.bands)
        groups = len({ratio.group for ratio in own})
        table.add_row(metric, mode, str(len(own)), str(groups), f"{tail:.2f}", f"{covered:.0%}")
    return bands, table


def ratios(observations: Sequence[Seen]) -> list[Ratio]:
    """Measured over predicted for every metric. Predictions are corrected by other groups."""
    return [
        Ratio(metric, one.situation, one.group, 1 / ratio if metric == "throughput" else ratio)
        for one in observations
        for metric in one.timings
        if (ratio := one.ratio(metric)) is not None
    ]


def tail_of(ratios: Sequence[Ratio], calibration: Calibration) -> tuple[float, float]:
    """The tail whose bands come closest to the wanted coverage of groups left out, and their coverage."""
    fold = [fit.fold_of(ratio.group, calibration.folds) for ratio in ratios]
    covered = {}
    for tail in calibration.bands.tails:
        inside = 0
        for left_out in range(calibration.folds):
            others = [ratio for ratio, f in zip(ratios, fold, strict=True) if f != left_out]
            bands = bands_of(others, tail, calibration.bands)
            tested = [ratio for ratio, f in zip(ratios, fold, strict=True) if f == left_out]
            for ratio in tested:
                band = find(bands, ratio.metric, ratio.situation)
                inside += band is not None and band.low <= ratio.value <= band.high
        covered[tail] = inside / len(ratios)
    best = min(covered, key=lambda tail: abs(covered[tail] - calibration.bands.covered))
    return best, covered[best]


def bands_of(ratios: Sequence[Ratio], tail: float, rules: BandRules) -> list[Band]:
    """The bands of all classes with enough rows and groups, the narrowest class first."""
    bands = []
    for conditions in CLASSES:
        classes: dict[tuple[str, ...], list[Ratio]] = defaultdict(list)
        for ratio in ratios:
            classes[ratio.metric, *class_of(ratio.situation, conditions)].append(ratio)
        for (metric, *values), members in sorted(classes.items()):
            groups = {ratio.group for ratio in members}
            if len(members) < rules.least_rows or len(groups) < rules.least_groups:
                continue
            weight = fit.weights([ratio.group for ratio in members]) ** 2
            low, high = ends_of(np.array([ratio.value for ratio in members]), weight, tail)
            # The prediction itself is always within its range.
            ends = {"low": min(1.0, float(f"{low:.3g}")), "high": max(1.0, float(f"{high:.3g}"))}
            counts = {"n": len(members), "groups": len(groups)}
            stated = {"metric": metric, **dict(zip(conditions, values, strict=True))}
            bands.append(Band.model_validate({**stated, **ends, **counts}))
    return bands


def rendered(bands: Sequence[Band]) -> str:
    """The file as text, a line a band."""
    head = f"""\
# Measured over predicted: the range of about 8 in 10 published measurements, by class, the narrowest first; a dash: any.
# Written by `python -m sizing.calibration.bands`, the memory rows by tests/benchmarks/memory_bands.py.
# {" ".join(Band.model_fields)}
bands: |"""
    lines = (f"  {band.line()}" for band in bands)
    source = 'source: "published benchmark runs and engine logs, each with its source beside the measurement"'
    return "\n".join((head, *lines, source, f'date: "{date.today().isoformat()}"', ""))


if __name__ == "__main__":
    sys.exit(run(main))
