"""An estimate as one row a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sizing.formats.view import Row, Rows, plain
from sizing.report.documents import Estimate
from sizing.report.parts.question import LABELS

if TYPE_CHECKING:
    from sizing.report.documents_pools import Disaggregated


def of(document: Estimate) -> Rows:
    """One row a layout: the answer, then the others that meet the demand, then the rejected with their reasons."""
    columns = (
        "status", "gpu", "weight_precision", "gpus", "replicas", "tp", "pp", "ep", "dp", "cp", "dcp", "requests_per_s_per_gpu",
        "concurrency_per_replica", "ttft_ms", "itl_ms", "e2e_ms", "usd_per_hour", "power_w", "limit", "detail",
    )  # fmt: skip
    shown = tuple(key for key in LABELS if key != "weight_precision")
    shared = tuple(document.inputs.get(key) for key in shown)
    rows: list[Row] = []
    deployment = document.deployment
    if deployment is not None and document.latency and document.throughput and document.load and document.cost:
        d, latency = deployment, document.latency
        rows.append(
            ("answer", d.gpu, document.inputs["weight_precision"], d.gpus, d.replicas, d.tp, d.pp, d.ep, d.dp, d.cp, d.dcp,
             document.throughput.requests_per_s_per_gpu, document.load.concurrency_per_replica, latency.ttft_ms.mean,
             latency.itl_ms.mean, latency.e2e_ms.mean, document.cost.usd_per_hour, document.cost.power_w,
             document.limiting.limit, document.limiting.detail)
        )  # fmt: skip
    if document.disaggregated is not None:
        rows += _pools(document.disaggregated)
    for a in document.alternatives:
        rows.append(
            ("feasible", a.gpu, a.weight_precision, a.gpus, a.replicas, a.tp, a.pp, a.ep, a.dp, a.cp, a.dcp, a.requests_per_s_per_gpu,
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
                r.cp,
                r.dcp,
                *[None] * 7,
                r.reason,
                r.detail,
            )
        )
    return Rows((*shown, *columns), tuple((*shared, *plain(row)) for row in rows))


def _pools(found: Disaggregated) -> list[Row]:
    """One row a pool; what both of them serve together stands in the rate per GPU of each."""
    return [
        (name, p.gpu, p.weight_precision, p.gpus, p.replicas, p.tp, p.pp, p.ep, p.dp, p.cp, p.dcp, found.requests_per_s_per_gpu, None,
         p.ttft_ms, p.itl_ms, None, None, None, p.limit, found.why)
        for name, p in (("prefill pool", found.prefill), ("decode pool", found.decode)) if p is not None
    ]  # fmt: skip
