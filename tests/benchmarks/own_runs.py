"""How well five own runs predict the rest: of their cell, and of other lengths, loads and layouts of one GPU and engine.

`python tests/benchmarks/own_runs.py [--cells 30] [--groups 20] [--seed 3] [--bound]` calibrates to published closed loops and prints median errors
before and after. A cell is one source, model, GPU, engine version, layout and shape with at least six loads: five are fitted,
the others left out. A group is all layouts and shapes of one model: five runs of one layout, three at one length and two at
another, predict the others; so do five runs of two layouts: three of the first, and the lightest and the heaviest load of that
with the most other number of GPUs. With `--bound` the factors are also fitted to the judged runs themselves: no calibration by
these factors can do better. Skips without the published rows.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))  # the package of this tree, whatever is installed

from places import SHARED

from sizing.calibration.measured_runs import MeasuredRuns, metrics_of
from sizing.calibration.own_runs import fit
from sizing.catalog.measured import load_measured
from sizing.catalog.shelf import only
from sizing.evidence.rows import Case, case_of_row
from sizing.model.architecture import Layout
from sizing.specs.calibration import Calibration
from sizing.specs.errors import InputError

MOST_OTHERS, FITTED = 24, 5
Errors = dict[str, list[tuple[float, float]]]


def groups() -> dict[tuple[str, ...], list[Case]]:
    """Closed loops by source, model, GPU, engine and version; those whose sources doubt them, and that do not fit, left out."""
    found: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for row in load_measured(SHARED / "measured" / "closed_loop.csv"):
        if row.notes.startswith("suspect"):
            continue
        try:
            case = case_of_row(row)
        except InputError:
            continue
        if case.missed is None and case.statistic == "mean" and metrics_of(case):
            found[row.source, row.model, row.gpu, row.engine, row.weight_precision, row.engine_version].append(case)
    return found


def by_load(cases: Sequence[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: case.row.concurrency or 0)


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """So many of cases, evenly from the first to the last."""
    return [cases[i] for i in sorted({round(x) for x in np.linspace(0, len(cases) - 1, count)})]


def errors(fitted: Sequence[Case], others: Sequence[Case]) -> Errors:
    """(|error| by the base profile, by the calibrated one) of each metric of the others."""
    gpu, rules = fitted[0].replica.gpu_type.gpu, only(Calibration).own_runs
    at = fit(MeasuredRuns(fitted, gpu, rules)).at
    runs = MeasuredRuns(others, gpu, rules)
    found: Errors = defaultdict(list)
    before, after = (np.abs(np.expm1(runs.simulated(place) - runs.measured)) for place in (np.zeros(4), at))
    for name, old, new in zip(runs.names, before, after, strict=True):
        found[name].append((float(old), float(new)))
    return found


def cells(most: int, seed: int) -> None:
    """Points left out of a calibration to five of their cell."""
    found = []
    for cases in groups().values():
        of: dict[tuple[object, ...], list[Case]] = defaultdict(list)
        for case in cases:
            of[case.replica.layout, case.row.isl, case.row.osl].append(case)
        found += [by_load(cell) for cell in of.values() if len({case.row.concurrency for case in cell}) > FITTED]
    random.Random(seed).shuffle(found)
    total: Errors = defaultdict(list)
    for cell in found[:most]:
        chosen = spread(cell, FITTED)
        for name, pairs in errors(chosen, [case for case in cell if case not in chosen]).items():
            total[name] += pairs
    print(f"{min(most, len(found))} of {len(found)} cells, five runs fitted: median error in % of those left out")
    for name, pairs in total.items():
        old, new = np.median(np.array(pairs), axis=0) * 100
        print(f"  {name:15} {len(pairs):4}  {old:5.1f} -> {new:5.1f}")


def others(most: int, seed: int, *, bound: bool) -> None:
    """Other lengths, loads and layouts than those of five runs: of one layout, and of two, where there is a second one."""
    known = sorted(groups().items(), key=lambda item: -len(item[1]))[:most]
    halved: dict[str, list[bool]] = defaultdict(list)
    for key, cases in known:
        layouts: dict[Layout, dict[tuple[float, float], list[Case]]] = defaultdict(lambda: defaultdict(list))
        for case in cases:
            layouts[case.replica.layout][case.row.isl, case.row.osl].append(case)
        layout, shapes = max(
            layouts.items(), key=lambda item: (sum(len(of) > 1 for of in item[1].values()), len(item[1]))
        )
        lengths = sorted(shapes, key=lambda shape: shape[1] / shape[0])
        first, second = by_load(shapes[lengths[0]]), by_load(shapes[lengths[len(lengths) // 2]])
        of_one = [*spread(first, 3), *(spread(second, 2) if len(lengths) > 1 else [])]
        rest = [case for case in cases if case not in of_one and case not in first and case not in second]
        if len(of_one) < FITTED - 1 or not rest:
            continue
        away = [case for case in rest if case.replica.layout.gpus != layout.gpus]
        far = max(away, key=lambda case: abs(np.log(case.replica.layout.gpus / layout.gpus)), default=None)
        of_far = [case for case in away if far is not None and case.replica.layout == far.replica.layout]
        ends = spread(by_load(of_far), 2) if of_far else []
        sample = random.Random(seed).sample(rest, min(MOST_OTHERS, len(rest)))
        print(f"{', '.join(key)}: {len(of_one)} runs as {layout}, {len(sample)} others")
        told(of_one, sample, halved, "one layout")
        if bound:
            told(sample, sample, halved, "the judged runs")
        if len(ends) == 2:
            left = [case for case in sample if case not in ends]
            told([*spread(first, 2), second[0], *ends], left, halved, f"two layouts, {ends[0].replica.layout} too")
    print("groups whose error halves:", {name: f"{sum(of)} of {len(of)}" for name, of in halved.items()})


def told(fitted: Sequence[Case], others: Sequence[Case], halved: dict[str, list[bool]], how: str) -> None:
    """Print the errors of others before and after, and keep whether they halve, by metric and number of layouts."""
    for name, pairs in errors(fitted, others).items():
        old, new = np.median(np.array(pairs), axis=0) * 100
        halved[f"{name}, {how.partition(',')[0]}"].append(bool(new <= old / 2))
        print(f"  {name:10} {len(pairs):4}  {old:5.1f} -> {new:5.1f}{'  halved' if new <= old / 2 else ''}  ({how})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("cells", 30), ("groups", 20), ("seed", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--bound", action="store_true")
    asked = parser.parse_args()
    if not (SHARED / "measured").is_dir():
        print("published rows are not here")
        return
    cells(asked.cells, asked.seed)
    others(asked.groups, asked.seed, bound=asked.bound)


if __name__ == "__main__":
    main()
