"""The rows of a document that tabular formats (CSV, Markdown) write: column names once, then one tuple a row."""

from __future__ import annotations

from typing import Any, NamedTuple

from sizing.report.documents import (
    Estimate,
    MemoryReport,
    SimulationReport,
    StepReport,
    TickReport,
    ValidationReport,
    plain,
)

Row = tuple[Any, ...]


class Rows(NamedTuple):
    """A table: a title, column names, rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


LABELS = ("model", "weight_precision", "isl", "osl", "engine", "engine_version")


def of(document: Any) -> Rows:
    """Return the table of a document."""
    if isinstance(document, Estimate):
        return _estimate(document)
    if isinstance(document, MemoryReport):
        return _flat("memory", {**_labels(document.inputs), **plain(document.memory), "fits": document.fits})
    if isinstance(document, StepReport):
        columns = ("name", "count", "flops", "bytes", "message_bytes", "seconds", "share", "bound")
        return Rows("step", columns, tuple(tuple(plain(o)[c] for c in columns) for o in document.operations))
    if isinstance(document, (SimulationReport, TickReport)):
        return _runs(document)
    if isinstance(document, ValidationReport):
        from sizing.report import validation

        return Rows("validation", *validation.table(document))
    raise TypeError(f"no table for {type(document).__name__}")


def _labels(inputs: dict[str, Any]) -> dict[str, Any]:
    return {key: inputs.get(key) for key in LABELS}


def _flat(title: str, values: dict[str, Any]) -> Rows:
    return Rows(title, tuple(values), (tuple(values.values()),))


def _runs(document: SimulationReport | TickReport) -> Rows:
    """One row a policy; what has parts (a latency, the queue) has a column for each."""
    labels = {} if isinstance(document, TickReport) else {**_labels(document.inputs), "tp": document.inputs["tp"]}
    rows = [{**labels, **_parts(plain(run))} for run in document.runs]
    for row in rows:
        row.pop("timeline", None)
    return Rows("simulation", tuple(rows[0]), tuple(tuple(row.values()) for row in rows))


def _parts(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{part}": entry for part, entry in value.items()}
        else:
            flat[name] = "; ".join(value) if isinstance(value, list) else value
    return flat


def _estimate(document: Estimate) -> Rows:
    """One row a layout: the answer, then the others that meet the demand, then the rejected with their reasons."""
    columns = (
        "status", "gpu", "weight_precision", "gpus", "replicas", "tp", "pp", "ep", "dp", "requests_per_s_per_gpu",
        "concurrency_per_replica", "ttft_ms", "itl_ms", "e2e_ms", "usd_per_hour", "power_w", "limit", "detail",
    )  # fmt: skip
    labels = tuple(key for key in LABELS if key != "weight_precision")
    shared = tuple(document.inputs.get(key) for key in labels)
    rows: list[Row] = []
    deployment = document.deployment
    if deployment is not None and document.latency and document.throughput and document.load and document.cost:
        d, latency = deployment, document.latency
        rows.append(
            ("answer", d.gpu, document.inputs["weight_precision"], d.gpus, d.replicas, d.tp, d.pp, d.ep, d.dp,
             document.throughput.requests_per_s_per_gpu, document.load.concurrency_per_replica, latency.ttft_ms.mean,
             latency.itl_ms.mean, latency.e2e_ms.mean, document.cost.usd_per_hour, document.cost.power_w,
             document.limiting.limit, document.limiting.detail)
        )  # fmt: skip
    for a in document.alternatives:
        rows.append(
            ("feasible", a.gpu, a.weight_precision, a.gpus, a.replicas, a.tp, a.pp, a.ep, a.dp, a.requests_per_s_per_gpu,
             None, a.ttft_ms, a.itl_ms, a.e2e_ms, a.usd_per_hour, a.power_w, a.limit, "")
        )  # fmt: skip
    for r in document.rejected:
        rows.append(
            (
                "rejected",
                r.gpu,
                r.weight_precision,
                None,
                None,
                r.tp,
                r.pp,
                r.ep,
                r.dp,
                *[None] * 7,
                r.reason,
                r.detail,
            )
        )
    return Rows("estimate", (*labels, *columns), tuple((*shared, *plain(row)) for row in rows))
