"""Refit constants of time, report the errors on groups left out, and write the engine profiles if requested."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from sizing.calibration import fit, published
from sizing.calibration.command import processes
from sizing.calibration.fit import Constant, Observed, Values, group_of, observe
from sizing.catalog import profiles, shelf
from sizing.catalog.measured import MeasuredRow, read_measured
from sizing.evidence.notes import known_of
from sizing.specs.calibration import Calibration, Fitted
from sizing.specs.errors import InputError
from sizing.specs.kernels import MeasuredKernel
from sizing.specs.units import parse_version

PARTS_OF_ADDRESS = 5  # scheme, empty part, host, owner, repository
METRICS = ("ttft_ms", "itl_ms", "req_per_s", "output_tok_per_s")


def main() -> None:
    """Read the rows, fit, report, write."""
    parser = argparse.ArgumentParser(prog="python -m sizing.calibration", description="Refit constants of time.")
    parser.add_argument("files", nargs="*", type=Path, help="measured rows, as for llmsize validate")
    parser.add_argument("--published", type=Path, help="published deployments to answer, instead of a refit")
    parser.add_argument("--report", action="store_true", help="instead of a refit, errors of kernels on other shapes")
    parser.add_argument("--jobs", type=processes, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write the engine profiles")
    parser.add_argument("--docs", action="store_true", help="print the page on accuracy, from the data that is shipped")
    options = parser.parse_args()
    if options.docs:
        from sizing.calibration.docs import accuracy_page

        sys.stdout.write(accuracy_page())
        return
    console = Console(width=120, highlight=False)
    if options.published or options.report:
        reported = [kernels_left_out()] if options.report else []
        if options.published:
            reported += published.tables(published.answered(published.questions(options.published)))
        for table in reported:
            console.print(table)
        return
    if not options.files:
        parser.error("measured rows are needed, or --docs, --published, --report")
    calibration = shelf.only(Calibration)
    rows = sample(read_measured(options.files).rows, calibration)
    console.print(f"{len(rows)} rows of {len({group_of(row) for row in rows})} groups")
    found = calibrated(rows, calibration, options.jobs, console)
    if not found.constants:
        least = calibration.least_points
        raise InputError(f"no constant has the {least} rows that can be predicted that a fit takes", field="rows")
    console.print(errors_table(found))
    console.print(constants_table(found))
    if options.write:
        for path in write(found):
            console.print(f"wrote {path}")


def kernels_left_out() -> Table:
    """A table of errors of measured kernels on whole shapes left out, by operation, architecture and engine."""
    heads = ("operation", "architecture", "engine", "tables", "rows", "median, %", "p90, %")
    table = Table(*heads, title="kernels, shapes left out")
    found: dict[tuple[str, str, str], list[MeasuredKernel]] = defaultdict(list)
    for architecture in sorted({gpu.spec.architecture for gpu in map(profiles.load_gpu, profiles.GPUS.ids)}):
        kernels_of: tuple[MeasuredKernel, ...] = profiles.expert_kernels(architecture)
        for kernel in (*kernels_of, *profiles.surfaces(architecture)):
            for key in ((kernel.operation, architecture, kernel.engine), (kernel.operation, "all", "all")):
                found[key].append(kernel)
    for key, kernels in sorted(found.items()):
        rows = [kernel.points for kernel in kernels]
        errors = [
            100 * _weighted_median([getattr(kernel, name) for kernel in kernels], rows)
            for name in ("median_error", "p90_error")
        ]
        table.add_row(*key, str(len(kernels)), f"{sum(rows):,}", *(f"{error:.1f}" for error in errors))
    return table


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted median: half of the weight lies below it."""
    order = np.argsort(values)
    reached = np.cumsum(np.asarray(weights, dtype=float)[order])
    return float(np.asarray(values)[order][np.searchsorted(reached, reached[-1] / 2)])


Place = tuple[str, str, int]  # engine, setting, number of the row


class Calibrated(NamedTuple):
    """Rows with predictions: before the fit, with the fitted constants, and with constants fitted to the other folds.

    `constants` are all fitted constants. `kept` are those of profile rows whose fit also helps groups left out of it.
    """

    rows: list[MeasuredRow]
    before: list[Observed]
    after: list[Observed]
    held_out: list[Observed]
    constants: dict[Constant, float]
    kept: frozenset[Place]


def pairs_of(calibration: Calibration) -> list[tuple[str, str]]:
    """The (setting, field) pairs that are fitted for at least one engine."""
    return list(dict.fromkeys((rule.setting, rule.field) for rule in calibration.fields))


def sample(rows: Iterable[MeasuredRow], calibration: Calibration) -> list[MeasuredRow]:
    """The rows to learn from: some of each run, spread over its loads, without excluded rows."""
    runs: dict[tuple[object, ...], list[MeasuredRow]] = defaultdict(list)
    for stated in rows:
        row = known_of(stated, calibration.not_fitted)
        if row is not None:
            key = (row.source, row.model, row.gpu, row.engine_version, row.weight_precision, row.tp, row.mode)
            runs[key].append(row)
    chosen = []
    for run in runs.values():
        run.sort(key=lambda row: (row.concurrency or row.batch or 0, row.isl, row.osl))
        places = np.linspace(0, len(run) - 1, min(calibration.rows_per_group, len(run)))
        chosen += [run[int(place)] for place in places]
    return chosen


def calibrated(rows: Sequence[MeasuredRow], calibration: Calibration, jobs: int, console: Console) -> Calibrated:
    """Fit in rounds of simulating and solving. Then predict every row with constants fitted without its fold."""
    pairs = pairs_of(calibration)
    first = observe(rows, pairs, [{}] * len(rows), jobs)
    known = [(row, seen) for row, seen in zip(rows, first, strict=True) if seen is not None]
    kept, before = [row for row, _ in known], [seen for _, seen in known]
    rules = rules_of(before, calibration)
    values = {constant: value for seen in before for constant, value in seen.constants.items() if constant in rules}
    after = before
    for number in range(calibration.rounds):
        console.print(f"round {number + 1}: how each prediction follows from {len(values)} constants")
        problem = linear(kept, after, values, rules, calibration, jobs)
        values = dict(zip(problem.constants, fit.solve(problem, rules, calibration).tolist(), strict=True))
        after = _known(observe(kept, pairs, [values] * len(kept), jobs))
    folds = [fit.fold_of(group_of(row), calibration.folds) for row in kept]
    without: list[Values] = [
        dict(zip(problem.constants, fit.solve(problem, rules, calibration, fold).tolist(), strict=True))
        for fold in range(calibration.folds)
    ]
    held_out = _known(observe(kept, pairs, [without[fold] for fold in folds], jobs))
    helped = helpful(kept, before, held_out, calibration)
    accepted = {constant: value for constant, value in values.items() if place_of(constant) in helped}
    console.print(f"kept: {len(helped)} rows of profiles, whose fit helps groups left out")
    after = _known(observe(kept, pairs, [accepted] * len(kept), jobs))
    tried = [{c: value for c, value in without[fold].items() if place_of(c) in helped} for fold in folds]
    held_out = _known(observe(kept, pairs, tried, jobs))
    return Calibrated(kept, before, after, held_out, values, helped)


def place_of(constant: Constant) -> Place:
    """The profile row of a constant."""
    return constant.engine, constant.setting, constant.row


def helpful(
    rows: Sequence[MeasuredRow], before: Sequence[Observed], held_out: Sequence[Observed], calibration: Calibration
) -> frozenset[Place]:
    """The profile rows whose fit lowers the fit's loss on groups left out."""
    was_off, now_off = defaultdict[Place, float](float), defaultdict[Place, float](float)
    groups = Counter(group_of(row) for row in rows)
    for row, old, new in zip(rows, before, held_out, strict=True):
        for name in METRICS:
            if _states(row, old, name):
                measured, weight = getattr(row, name), groups[group_of(row)] ** -0.5
                was, now = (math.log(one.metrics[name] / measured) / calibration.loss_scale for one in (old, new))
                for place in {place_of(constant) for constant in old.constants}:
                    was_off[place] += weight * math.log1p(was**2)
                    now_off[place] += weight * math.log1p(now**2)
    return frozenset(place for place, off in was_off.items() if now_off[place] < (1 - calibration.least_gain) * off)


def rules_of(observed: Sequence[Observed], calibration: Calibration) -> dict[Constant, Fitted]:
    """The constants on which enough rows depend, with their rules."""
    count = Counter(constant for one in observed for constant in one.constants)
    return {
        constant: rule
        for constant, rows in sorted(count.items())
        for rule in calibration.fields
        if rows >= calibration.least_points and applies(rule, constant)
    }


def applies(rule: Fitted, constant: Constant) -> bool:
    """Whether a rule applies to a constant: to its field, its engine, and the versions of its row."""
    if (rule.setting, rule.field) != (constant.setting, constant.field) or rule.engine not in (None, constant.engine):
        return False
    row = profiles.load_engine(constant.engine)[0].spec.settings[constant.setting][constant.row]
    if rule.since is not None and parse_version(row.since) < parse_version(rule.since):
        return False
    if rule.until is None:
        return True
    last = parse_version(rule.until)
    return row.until is not None and parse_version(row.until)[: len(last)] <= last


def linear(
    rows: Sequence[MeasuredRow],
    observed: Sequence[Observed],
    values: Values,
    rules: dict[Constant, Fitted],
    calibration: Calibration,
    jobs: int,
) -> fit.Problem:
    """Simulate the rows once more for each field, changed by its step in all profiles at once.

    This works because a run uses only one row of each setting.
    """
    pairs = pairs_of(calibration)
    constants = tuple(values)
    place = {constant: number for number, constant in enumerate(constants)}
    stated = [
        (number, name) for number, row in enumerate(rows) for name in METRICS if _states(row, observed[number], name)
    ]
    error = np.array([math.log(observed[n].metrics[name] / getattr(rows[n], name)) for n, name in stated])
    slope = np.zeros((len(stated), len(constants)))
    for pair in pairs:
        steps = {constant: rules[constant].step for constant in values if (constant.setting, constant.field) == pair}
        changed = {constant: value + steps.get(constant, 0.0) for constant, value in values.items()}
        tried = _known(observe(rows, pairs, [changed] * len(rows), jobs))
        for line, (number, name) in enumerate(stated):
            own = next(c for c in observed[number].constants if (c.setting, c.field) == pair)
            if own in place:
                change = math.log(tried[number].metrics[name] / observed[number].metrics[name])
                slope[line, place[own]] = change / steps[own]
    groups = [(group_of(rows[number]), name) for number, name in stated]
    fold = np.array([fit.fold_of(group, calibration.folds) for group, _ in groups])
    return fit.Problem(constants, np.array(list(values.values())), error, slope, fit.weights(groups), fold)


def _states(row: MeasuredRow, observed: Observed, name: str) -> bool:
    return bool(getattr(row, name)) and observed.metrics.get(name, 0.0) > 0


def _known(observed: Sequence[Observed | None]) -> list[Observed]:
    """The observations without None, for rows that could be predicted before."""
    return [one for one in observed if one is not None]


def errors_table(calibrated: Calibrated) -> Table:
    """Median and 90th percentile of absolute errors: before, fitted, and with the constants of the other folds."""
    heads = ("metric", "mode", "kind", "rows", "before", "fitted", "held out", "of groups")
    table = Table(*heads, title="absolute error, %")
    cells: dict[tuple[str, str, str], list[tuple[float, float, float, str]]] = defaultdict(list)
    for row, *seen in zip(calibrated.rows, calibrated.before, calibrated.after, calibrated.held_out, strict=True):
        for name in METRICS:
            if _states(row, seen[0], name):
                errors = [abs(one.metrics[name] / getattr(row, name) - 1) for one in seen]
                kind = "experts" if seen[0].is_moe else "dense"
                cells[name, row.mode, kind].append((errors[0], errors[1], errors[2], group_of(row)))
    for key, rows in sorted(cells.items()):
        columns = np.array([row[:3] for row in rows]) * 100
        shown = [f"{np.median(column):.0f} / {np.quantile(column, 0.9):.0f}" for column in columns.T]
        by_group: dict[str, list[float]] = defaultdict(list)
        for *_, held_out, group in rows:
            by_group[group].append(held_out * 100)
        of_groups = np.median([np.median(errors) for errors in by_group.values()])
        table.add_row(*key, str(len(rows)), *shown, f"{of_groups:.0f} ({len(by_group)})")
    return table


def constants_table(calibrated: Calibrated) -> Table:
    """Every constant, before and after, with the number of rows behind it."""
    table = Table("engine", "versions", "setting", "field", "before", "fitted", "rows", "kept", title="constants")
    before = {constant: value for seen in calibrated.before for constant, value in seen.constants.items()}
    rows = Counter(constant for seen in calibrated.before for constant in seen.constants)
    for constant, value in calibrated.constants.items():
        row = profiles.load_engine(constant.engine)[0].spec.settings[constant.setting][constant.row]
        versions = f"{row.since} to {row.until or 'newest'}"
        kept = "yes" if place_of(constant) in calibrated.kept else ""
        figures = (f"{before[constant]:.3g}", f"{value:.3g}", str(rows[constant]))
        table.add_row(constant.engine, versions, constant.setting, constant.field, *figures, kept)
    return table


def write(calibrated: Calibrated) -> list[Path]:
    """Write the constants into the profiles, with rows, spread, sources and date. Returns the files written."""
    by_row: dict[Place, dict[str, float]] = defaultdict(dict)
    for constant, value in calibrated.constants.items():
        if place_of(constant) not in calibrated.kept:
            continue
        by_row[constant.engine, constant.setting, constant.row][constant.field] = value
    new: dict[str, dict[str, dict[int, NewRow]]] = defaultdict(lambda: defaultdict(dict))
    for (engine, setting, row), values in by_row.items():
        new[engine][setting][row] = refitted(calibrated, (engine, setting, row), values)
    written = []
    for engine, settings in new.items():
        path = profiles.load_engine(engine)[0].path
        text = path.read_text(encoding="utf-8")
        for setting, rows in settings.items():
            text = engine_rewritten(text, setting, rows)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def origin_of(row: MeasuredRow) -> str:
    """The origin of a row: its address up to the repository or page, and the source's name."""
    address = "/".join(row.cells.get("url", "").split("/")[:PARTS_OF_ADDRESS])
    return f"{address} ({row.source})" if address else row.source


def refitted(calibrated: Calibrated, place: Place, values: dict[str, float]) -> NewRow:
    """The new fields of a profile row. Its spread is the median error of ITL, or of TTFT for a front end."""
    metric = "ttft_ms" if place[1] == "front_end" else "itl_ms"
    errors, sources, groups = [], Counter[str](), set()
    for row, seen in zip(calibrated.rows, calibrated.after, strict=True):
        if any(place_of(constant) == place for constant in seen.constants):
            sources[origin_of(row)] += 1
            groups.add(group_of(row))
            if _states(row, seen, metric):
                errors.append(abs(seen.metrics[metric] / getattr(row, metric) - 1))
    named = " ; ".join(f"{source}, {rows} rows" for source, rows in sources.most_common())
    return NewRow(
        value=values,
        points=sum(sources.values()),
        spread=float(np.median(errors)) if errors else 0.0,
        source=named,
        note=f"Refitted by sizing.calibration, {date.today().isoformat()}: {len(groups)} groups of source, model and GPU. "
        f"Spread is the median error of {metric.removesuffix('_ms').upper()}.",
    )


ITEM = "    - {"
SIGNIFICANT, NOTHING = 3, 1e-3  # digits kept; the solver's residue of a zero, in any unit used here


class NewRow(NamedTuple):
    """The changes of one setting row: fields of its value, and its sources."""

    value: dict[str, float]
    points: int
    spread: float
    source: str
    note: str


def engine_rewritten(text: str, setting: str, rows: Mapping[int, NewRow]) -> str:
    """The text of a profile with setting rows replaced, by row number. Raises ValueError for a missing row."""
    found = re.search(rf"^  {setting}:[^\n]*\n((?:    .*\n|\n)+)", f"{text}\n", re.MULTILINE)
    if found is None:
        raise ValueError(f"no setting {setting}")
    starts = [match.start() for match in re.finditer(rf"^{re.escape(ITEM)}", found[1], re.MULTILINE)]
    if max(rows) >= len(starts):
        raise ValueError(f"{setting} has {len(starts)} rows")
    pieces = [found[1][: starts[0]]]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
        piece = found[1][start:end]
        tail = piece[len(piece.rstrip()) :]
        pieces.append(_row(piece, rows[number]) + tail if number in rows else piece)
    return f"{text[: found.start(1)]}{''.join(pieces)}{text[found.end(1) :]}".rstrip("\n") + "\n"


def _row(piece: str, new: NewRow) -> str:
    stated = yaml.safe_load(piece)[0]
    value = {**stated["value"], **{name: _rounded(number) for name, number in new.value.items()}}
    value |= {"points": new.points, "spread": _rounded(new.spread)}
    head = {name: stated[name] for name in ("since", "until", "when") if name in stated}
    first = _flow({**head, "value": value, "evidence": "measured"})
    return f"    - {first[:-1]},\n       source: {json.dumps(new.source)},\n       note: {json.dumps(new.note)}}}"


def _rounded(value: float) -> float:
    rounded = float(f"{value:.{SIGNIFICANT}g}") if value > NOTHING else 0.0
    return int(rounded) if rounded == int(rounded) else rounded


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if re.fullmatch(r"[a-z_]+", value) else json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
