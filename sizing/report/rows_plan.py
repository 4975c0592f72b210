"""A plan as rows: one a workload, then one a pool and one an hour of the profile."""

from __future__ import annotations

from typing import Any

from sizing.formats.view import Row, Rows, plain
from sizing.report.plan import PlanReport

COLUMNS = (
    "of", "name", "gpu", "pool", "hour", "requests_per_s", "mean_requests_per_s", "most_per_replica", "base_replicas",
    "reserve_replicas", "replicas", "gpus", "nodes", "installed_gpus",
)  # fmt: skip


def of(document: PlanReport) -> Rows:
    """Return one row a workload, a pool and an hour; cells that do not apply are empty."""
    found = [
        _row(of="workload", name=w.name, gpu=w.gpu, pool=w.pool, requests_per_s=w.peak_requests_per_s,
             mean_requests_per_s=w.mean_requests_per_s, most_per_replica=w.most_per_replica, base_replicas=w.base_replicas,
             reserve_replicas=w.reserve.replicas, replicas=w.replicas, gpus=w.gpus, nodes=w.nodes)
        for w in document.workloads
    ]  # fmt: skip
    found += [
        _row(of="pool", name=", ".join(p.workloads), gpu=p.gpu, pool=p.pool, gpus=p.gpus, nodes=p.nodes, installed_gpus=p.installed_gpus)
        for p in document.pools
    ]  # fmt: skip
    found += [
        _row(of="hour", hour=h.hour, requests_per_s=h.requests_per_s, replicas=h.replicas, gpus=h.gpus)
        for h in document.hours
    ]
    return Rows(COLUMNS, tuple(found))


def _row(**values: Any) -> Row:
    return tuple(plain(values.get(column)) for column in COLUMNS)
