"""What a curve is of: its inputs as resolved, and what its numbers rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sizing.answers.curve import Arrivals, Layouts, Line
from sizing.answers.pool_curve import PoolLine, Unpaired
from sizing.engine.simulation import ROUNDS
from sizing.formats.view import Assumption
from sizing.question.question import Question
from sizing.replica.capacity import Load
from sizing.replica.replica import Refusal, Replica
from sizing.report import curve_pools
from sizing.report.curve_measured import Benchmark
from sizing.report.documents_curve import CurveLine
from sizing.report.parts import assumptions, pools
from sizing.report.parts.question import Asked, conversation


class Drawn(NamedTuple):
    """What is predicted: the request, the lines that were found, and the loads that each is put under."""

    asked: Asked
    question: Question
    found: tuple[Line | Refusal, ...]
    layouts: Layouts
    in_flight: tuple[int, ...]
    arrivals: Arrivals
    simulated: bool
    seed: int
    pools: tuple[PoolLine | Unpaired, ...] = ()


class Measured(NamedTuple):
    """The file of measurements, what of it is shown, and its lines."""

    file: str
    benchmark: Benchmark
    lines: tuple[CurveLine, ...]


def inputs(drawn: Drawn | None, measured: Measured | None) -> dict[str, Any]:
    """Return everything resolved: of predictions where there are any, else of what was measured."""
    of_file = None if measured is None else _of_file(measured)
    if drawn is None:
        assert measured is not None
        return {"model": measured.benchmark.model, "isl": measured.benchmark.isl, "osl": measured.benchmark.osl, "measured": of_file}  # fmt: skip
    request, tokens = drawn.question, drawn.asked.workload.tokens
    return {
        "workload": drawn.asked.workload_name,
        "model": request.service.model.name,
        "model_id": drawn.asked.model_id,
        "gpus": [option.name for option in drawn.asked.options],
        "weight_precisions": list(dict.fromkeys(_precision(one) for one in drawn.found)),
        "kv_precision": request.service.kv_precision,
        "engine": request.service.engine.name,
        "engine_title": request.service.engine.title,
        "engine_version": request.service.engine_version,
        "isl": request.service.isl,
        "task": request.service.task,
        "osl": request.service.output_tokens,
        "isl_max": tokens.isl_max or request.service.isl,
        "osl_max": tokens.osl_max or request.service.osl,
        "isl_std": tokens.isl_std,
        "osl_std": tokens.osl_std,
        "max_model_len": request.service.max_model_len,
        "mode": drawn.asked.workload.mode,
        "tp": list(drawn.layouts.tp),
        "pp": list(drawn.layouts.pp),
        "serving": {**request.service.serving.model_dump(exclude={"tp", "pp"})},
        **conversation(request, placed=False),
        "concurrency": list(drawn.in_flight),
        "arrivals": drawn.arrivals,
        "simulated": drawn.simulated,
        "rounds": ROUNDS if drawn.simulated and drawn.arrivals == "closed" else None,
        "seed": drawn.seed if drawn.simulated else None,
        "optimisations": request.service.optimisations.asked(),
        "pools": _of_pools(drawn.pools) if drawn.pools else None,
        "measured": of_file,
    }


def _of_pools(found: Sequence[PoolLine | Unpaired]) -> dict[str, Any]:
    """Return what is fixed along lines of pools, and the loads of each in requests in flight over both pools."""
    return {
        "fixed": curve_pools.HELD,
        "concurrency": [list(one.in_flight) for one in found if isinstance(one, PoolLine)],
    }


def _of_file(measured: Measured) -> dict[str, Any]:
    model, isl, osl, rows = measured.benchmark
    sources = list(measured.benchmark.sources)
    return {"file": measured.file, "rows": len(rows), "model": model, "isl": isl, "osl": osl, "sources": sources}


def _precision(found: Line | Refusal) -> str:
    return found.precision if isinstance(found, Refusal) else found.replica.plan.weight_format


def rests_on(drawn: Drawn | None, measured: Measured | None, number: int | None) -> Iterator[Assumption]:
    """Yield what is assumed and read: of the predicted line of a number among the predicted ones, and how loads are driven."""
    if measured is not None:
        for source in measured.benchmark.sources:
            rows = sum((row.source or "not stated") == source for row in measured.benchmark.rows)
            yield Assumption("points of a closed loop", rows, "rows", "measured", source)
    if drawn is None:
        return
    request = drawn.question
    yield from assumptions.of_model(request, drawn.asked.notes)
    yield _driven(drawn)
    yield from assumptions.of_limits(request)
    line = _line((*drawn.found, *drawn.pools), number)
    if isinstance(line, PoolLine):
        for pool in line.pair.pools:
            yield from _of_layout(request, pool.replica, pool.load)
        yield curve_pools.held()
        yield from pools.assumptions(line.asked.facts)
    elif line is not None:
        yield from _of_layout(request, line.replica, line.load)


def _of_layout(question: Question, chosen: Replica, load: Load) -> Iterator[Assumption]:
    yield from assumptions.of_memory(question, chosen)
    yield from assumptions.of_time(question, chosen, load.kernels)


def _line(found: Sequence[Line | Refusal | PoolLine | Unpaired], number: int | None) -> Line | PoolLine | None:
    """Return the line that a result rests on: the one of the number, else the first that fits."""
    at = None if number is None else found[number]
    return (
        at
        if isinstance(at, (Line, PoolLine))
        else next((one for one in found if isinstance(one, (Line, PoolLine))), None)
    )


def _driven(drawn: Drawn) -> Assumption:
    if drawn.arrivals == "poisson":
        how = (
            "simulated through the engine's scheduler, in the steady state"
            if drawn.simulated
            else "in closed form (--no-verify)"
        )
        what = "the rate that keeps so many in flight on average; nothing is said where no stable rate does"
        return Assumption("load", what, "", "assumed", f"Poisson arrivals, {how}")
    if not drawn.simulated:
        what = "all requests start together, have equal lengths and stay grouped; nothing is said beyond the slots"
        return Assumption("load", what, "", "assumed", "closed loop in closed form (--no-verify)")
    what = f"an end brings the next request; each place is filled {ROUNDS} times"
    return Assumption("load", what, "", "assumed", "closed loop, simulated through the engine's scheduler")
