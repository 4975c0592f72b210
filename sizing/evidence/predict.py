"""Predictions of measured rows: simulate the run that a row states, and read off the metrics that its source measured.

Rows are spread over several processes. Rows with the same GPU and model are neighbours, so a process reads these files once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sizing.catalog.measured import MeasuredRow
from sizing.catalog.shelf import Found
from sizing.engine.simulation import Run, simulate
from sizing.evidence import systems
from sizing.evidence.rows import Case, case_of_row
from sizing.specs.bands import Corrections, DrivingMode, Situation, region
from sizing.specs.errors import InputError
from sizing.specs.gpu import Gpu
from sizing.specs.units import MILLI


class Prediction(NamedTuple):
    """Predicted metrics by column; 0 if the model can't run the row (`missed` says why).

    `corrected` holds the metrics with step times corrected by published runs; None if the correction changes nothing.
    `in_flight` is the mean number of requests in flight on one replica.
    """

    values: dict[str, float]
    in_flight: float
    missed: str | None = None
    corrected: dict[str, float] | None = None


def predict(case: Case) -> Prediction:
    """Predictions of the metrics that the row of `case` states."""
    row = case.row
    if case.missed is None:
        served = _served(case)
        if served is not None and served.completed:
            values = batch_metrics(served) if row.mode == "static_batch" else load_metrics(case, served)
            return Prediction({name: values.get(name, 0.0) for name in row.measured()}, in_flight(case, served))
    missed = case.missed or ("no rate keeps the limits" if row.mode == "server_slo" else "no request is ever let in")
    return Prediction(dict.fromkeys(row.measured(), 0.0), _stated_in_flight(case), missed)


def _served(case: Case) -> Run | None:
    """Simulate the run of a row as stated. For a system benchmark: the run with the most requests/s within the limits."""
    if case.row.mode == "server_slo":
        return systems.most_within(case.deployed, case.traffic, systems.limits_of(case.row))
    return simulate(case.deployed, case.traffic, routing="round-robin")


def batch_metrics(run: Run) -> dict[str, float]:
    """The metrics of one static batch, as sources time it: the whole prefill, the steps after it, the end."""
    requests = run.requests
    first_s = float(np.nanmax(requests.first_token)) if requests.first_token else 0.0
    end_s = float(np.nanmax(requests.finished))
    longest = max(requests.osl)
    return {
        "ttft_ms": first_s / MILLI,
        "itl_ms": (end_s - first_s) / (longest - 1) / MILLI if longest > 1 else 0.0,
        "e2e_ms": end_s / MILLI,
        "req_per_s": run.completed / end_s,
        "output_tok_per_s": sum(requests.osl) / end_s,
    }


def load_metrics(case: Case, run: Run) -> dict[str, float]:
    """The metrics of a load, in the statistic of the source."""
    statistic, known = case.statistic, run.latencies_s.items()
    metrics = {f"{name}_ms": found[statistic] / MILLI for name, found in known if statistic in found}
    if case.itl_definition is not None:
        metrics["itl_ms"] = ITL_DEFINITIONS[case.itl_definition](run) / MILLI
    replicas = case.deployed.count if case.row.mode == "server_slo" else 1  # server_slo simulates one replica
    rates = {"req_per_s": run.requests_per_s, "output_tok_per_s": run.output_tokens_per_s}
    return metrics | {name: rate * replicas for name, rate in rates.items()}


def _per_output_token_s(run: Run) -> float:
    """Mean of E2E divided by output tokens, including the first token, as LLMPerf counts it."""
    requests = run.requests
    e2e_s = np.asarray(requests.finished) - np.asarray(requests.arrival)
    return float(np.nanmean(e2e_s / np.asarray(requests.osl, dtype=float)))


def _per_gap_s(run: Run) -> float:
    """Mean over all pairs of neighbouring tokens, so that long outputs weigh more."""
    requests = run.requests
    decoding_s = np.asarray(requests.finished) - np.asarray(requests.first_token)
    return float(np.nansum(decoding_s)) / max(1, sum(requests.osl) - len(requests.osl))


ITL_DEFINITIONS = {"e2e_per_token": _per_output_token_s, "per_gap": _per_gap_s}


def in_flight(case: Case, run: Run) -> float:
    """Mean requests in flight on one replica: as stated, otherwise from the simulated run by Little's law."""
    if case.row.mode in ("closed_loop", "static_batch"):
        return _stated_in_flight(case)
    replicas = 1 if case.row.mode == "server_slo" else case.deployed.count
    return run.requests_per_s * run.latencies_s["e2e"]["mean"] / replicas


def _stated_in_flight(case: Case) -> float:
    row = case.row
    return (row.concurrency or row.batch or case.traffic.count) / case.deployed.count


ROWS_PER_CHUNK = 24  # small enough that processes end together, large enough that many rows share the files read


class Resolution(NamedTuple):
    """How a row was understood: the catalogue's names, dense or mixture of experts, and notes."""

    engine: str
    gpu: str
    model: str
    is_moe: bool
    notes: tuple[str, ...]
    situation: Situation


class Result(NamedTuple):
    """A row's prediction, or the reason why there is none."""

    row: MeasuredRow
    resolution: Resolution | None
    prediction: Prediction | None
    skipped: str | None


BAND_MODES: dict[str, DrivingMode] = {
    "closed_loop": "served",
    "open_loop": "served",
    "static_batch": "batch",
    "max_throughput": "offline",
    "server_slo": "served",
}


Predict = Callable[[list[MeasuredRow]], list[Result]]
Mapper = Callable[[Predict, Iterable[list[MeasuredRow]]], Iterable[list[Result]]]


def predict_rows(
    rows: Sequence[MeasuredRow],
    corrections: Corrections | None = None,
    progress: Callable[[int], None] | None = None,
    gpu: Found[Gpu] | None = None,
    each: Mapper = map,
) -> tuple[Result, ...]:
    """Predict rows. Results are in the order of the rows. `each` maps in order, possibly in other processes.

    In a benchmark of whole systems the best submission of a system is predicted, and the others with it. `progress` is called with
    the number of rows done. With a profile `gpu`, only rows of its GPU are predicted, with that profile.
    """
    predicted = partial(_chunk, corrections=corrections, gpu=gpu)
    outdone = systems.outdone(rows)
    asked = [number for number in range(len(rows)) if number not in outdone]
    order = sorted(asked, key=lambda i: (rows[i].gpu, rows[i].model, rows[i].engine, rows[i].tp or 1))
    starts = range(0, len(order), ROWS_PER_CHUNK)
    chunks = [[rows[i] for i in order[start : start + ROWS_PER_CHUNK]] for start in starts]
    done = _told(each(predicted, chunks), len(outdone), progress)
    by_row = dict(zip(order, done, strict=True))
    by_row |= {number: _as_best(rows[number], by_row[best]) for number, best in outdone.items()}
    return tuple(by_row[i] for i in range(len(rows)))


LESSER = "another submission of the same system reached more: predicted as that one, rates alone"


def _as_best(row: MeasuredRow, best: Result) -> Result:
    """The result of a lesser submission: the rates of the best one of its system. Its latencies are of a lower load."""
    row = replace(row, ttft_ms=None, itl_ms=None, e2e_ms=None)
    if best.resolution is None or best.prediction is None or not row.measured().keys() <= best.prediction.values.keys():
        why = f"{best.row.id} of the same system reached more, and does not state the same rates"
        return best._replace(row=row, prediction=None, resolution=None, skipped=best.skipped or why)
    return best._replace(row=row, resolution=best.resolution._replace(notes=(*best.resolution.notes, LESSER)))


def _told(chunks: Iterable[list[Result]], already: int, progress: Callable[[int], None] | None) -> list[Result]:
    done: list[Result] = []
    for chunk in chunks:
        done += chunk
        if progress is not None:
            progress(already + len(done))
    return done


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _chunk(rows: Sequence[MeasuredRow], corrections: Corrections | None, gpu: Found[Gpu] | None) -> list[Result]:
    return [predict_row(row, corrections, gpu) for row in rows]


def predict_row(row: MeasuredRow, corrections: Corrections | None = None, gpu: Found[Gpu] | None = None) -> Result:
    """Predict one row, also with `corrections`. A row that can't be predicted gives a result with the reason.

    If the row does not state the layout that its submitter chose, the layout with the highest throughput is predicted.
    """
    best: Result | None = None
    for run in systems.submissions(row):
        found = _predicted(run, corrections, gpu)._replace(row=row)
        if best is None or _serves(found) > _serves(best):
            best = found
        elif _serves(best):
            break  # wider splits are only slower
    assert best is not None
    return best


def _serves(result: Result) -> float:
    """The predicted throughput of a result; 0 if there is no prediction."""
    return 0.0 if result.prediction is None else systems.served(result.prediction.values)


def _predicted(row: MeasuredRow, corrections: Corrections | None, gpu: Found[Gpu] | None) -> Result:
    try:
        case = case_of_row(row, gpu)
    except InputError as error:
        return Result(row, None, None, "; ".join(map(str, error.faults)))
    service, gpu_type = case.replica.service, case.replica.gpu_type
    situation = service.situation(gpu_type.gpu)._replace(mode=BAND_MODES[row.mode])
    found = Resolution(service.engine.name, gpu_type.id, case.model, case.is_moe, case.notes, situation)
    result = Result(row, found, predict(case), None)
    if corrections is None or result.prediction is None or result.prediction.missed:
        return result
    by = corrections.of(situation_of(result))
    if (by.decode, by.prefill) == (1.0, 1.0):
        return result
    deployed = replace(case.deployed, kernels=replace(case.deployed.kernels, correction=by))
    corrected = predict(replace(case, deployed=deployed)).values
    return result._replace(prediction=result.prediction._replace(corrected=corrected))


def situation_of(result: Result) -> Situation:
    """The situation of a predicted row, which selects its error bands and corrections."""
    assert result.resolution is not None and result.prediction is not None
    return result.resolution.situation._replace(load=region(result.prediction.in_flight))
