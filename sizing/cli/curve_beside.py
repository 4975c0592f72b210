"""Measurements beside a curve: the rows that options and a workload take, and what they fill in where these are silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from sizing.catalog.engines import load_engine
from sizing.catalog.measured import load_measured
from sizing.cli.collecting import Part
from sizing.cli.named import ALL
from sizing.cli.options import comma_separated
from sizing.report.curve_inputs import Measured
from sizing.report.curve_measured import Benchmark, Filter, gpu_key, lines, select
from sizing.specs.workload import Precision, Workload


def measured(
    values: Mapping[str, Any], tp: tuple[int, ...], pp: tuple[int, ...], spec: Workload | None
) -> Measured | None:
    """Return the rows that options, or a workload where they are silent, take; None without a file.

    Raises InputError for a file that can't be read, and for rows that make no curve.
    """
    if values["measured"] is None:
        return None
    gpus = comma_separated(values["gpu"]) if values["gpu"] is not None else list(spec.gpu if spec else ())
    precisions = comma_separated((values["precision"] or "").lower())
    wanted = Filter(
        model=values["model"] or (spec.model if spec else None),
        gpus=() if ALL in gpus else tuple(gpus),
        precisions=() if ALL in precisions else tuple(precisions),
        tp=tp,
        pp=pp,
        isl=values["isl"] if values["isl"] is not None else (spec.tokens.isl if spec else None),
        osl=values["osl"] if values["osl"] is not None else (spec.tokens.osl if spec else None),
    )
    file = values["measured"]
    benchmark = select(load_measured(file), file, wanted)
    return Measured(file, benchmark, lines(benchmark, file))


def as_measured(benchmark: Benchmark, values: Mapping[str, Any], spec: Workload | None) -> dict[str, Any]:
    """Return the options that make predictions comparable with measurements where neither they nor a workload say."""
    rows = benchmark.rows
    filled: dict[str, Any] = {}
    if values["gpu"] is None and not (spec is not None and spec.gpu):
        filled["gpu"] = ",".join(dict.fromkeys(gpu_key(row.gpu) for row in rows))
    known = [name for row in rows if (name := row.weight_precision.lower()) in get_args(Precision)]
    if values["precision"] is None and known and not (spec is not None and spec.precision):
        filled["precision"] = ",".join(dict.fromkeys(known))
    if spec is None:
        filled |= {name: values[name] or getattr(benchmark, name) for name in ("isl", "osl")}
        engines = {row.engine for row in rows}
        if values["engine"] is None and len(engines) == 1:
            engine = Part(lambda: load_engine(engines.pop())[0].id)
            filled |= {} if engine.faults else {"engine": engine.value}
    return filled
