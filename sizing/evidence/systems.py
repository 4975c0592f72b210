"""Benchmarks of whole systems: the submitter's choices, the best submission of a system, the most requests/s within limits.

Rows of such a benchmark state the number of GPUs and the throughput, but neither lengths nor layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sizing.catalog import profiles, workloads
from sizing.catalog.measured import MeasuredRow, benchmark_of
from sizing.engine.deployment import Deployment
from sizing.engine.simulation import Run, Traffic, simulate
from sizing.model.precision import peak_of
from sizing.specs.errors import InputError
from sizing.specs.measurements import SystemBenchmark
from sizing.specs.workload import Limits

SPLITS = (1, 2, 4, 8)  # GPUs of a replica
SENT = 6000  # requests in a try, several times the number in flight, because a ramp alone would keep any limit
TRIES = 7  # each try halves the range of rates
RANGE = (0.4, 1.2)  # the range of the search, as shares of the rate with all requests at once (ramp and drain included)


def submissions(row: MeasuredRow) -> Iterator[MeasuredRow]:
    """Yield the row with each layout that its submitter could choose; the row itself if it is of no system benchmark."""
    of = benchmark_of(row.source, row.model)
    if of is None:
        yield row
        return
    weights = _weights(of, row)
    run = replace(row, weight_precision=weights, kv_precision=of.cache, num_requests=row.num_requests or of.requests)
    if row.tp is not None:
        yield run
        return
    yield from (replace(run, tp=tp) for tp in SPLITS if (row.n_gpus or 1) % tp == 0)


def _weights(system: SystemBenchmark, row: MeasuredRow) -> str:
    """The first of the benchmark's formats that the GPU can multiply in, otherwise the format in the row."""
    try:
        tflops = profiles.load_gpu(row.gpu).spec.datasheet.dense_tflops
    except InputError:
        return row.weight_precision
    native = (name for name in system.weights if getattr(tflops, peak_of(name)) is not None)
    return next(native, row.weight_precision)


def outdone(rows: Sequence[MeasuredRow]) -> dict[int, int]:
    """The rows that are not the best submission of their system: row number to the number of the best."""
    best: dict[tuple[object, ...], int] = {}
    found: list[tuple[int, tuple[object, ...]]] = []
    for number, row in enumerate(rows):
        if benchmark_of(row.source, row.model) is None:
            continue
        system = (row.source, row.mode, row.engine, row.model, row.gpu, row.n_gpus)
        found.append((number, system))
        if system not in best or reached(row) > reached(rows[best[system]]):
            best[system] = number
    return {number: best[system] for number, system in found if best[system] != number}


def reached(row: MeasuredRow) -> float:
    """Tokens/s of a row of a system benchmark. If absent, requests/s times OSL."""
    return row.output_tok_per_s or (row.req_per_s or 0.0) * row.osl


def most_within(deployed: Deployment, traffic: Traffic, limits: Limits) -> Run | None:
    """The run of one replica with the most requests/s that keeps `limits` under Poisson arrivals; None if no run does.

    The search is a bisection between shares of the rate with all requests at once, to about a hundredth of that rate.
    """
    one = replace(deployed, count=1)
    offline = simulate(one, replace(traffic, count=SENT, rate_per_s=None))
    low, high = (share * offline.requests_per_s for share in RANGE)
    kept = None
    for _ in range(TRIES):
        rate = (low + high) / 2
        run = simulate(one, replace(traffic, count=SENT, rate_per_s=rate, exact_rate=True))
        if run.completed and _keeps(run, limits):
            kept, low = run, rate
        else:
            high = rate
    return kept


def _keeps(run: Run, limits: Limits) -> bool:
    bounds = {"ttft": limits.ttft, "itl": limits.itl, "e2e": limits.e2e}
    return all(
        run.latencies_s[name][bound.statistic] <= bound.seconds for name, bound in bounds.items() if bound is not None
    )


def served(values: Mapping[str, float]) -> float:
    """Tokens/s of a prediction; requests/s if it has no tokens/s."""
    return values.get("output_tok_per_s") or values.get("req_per_s", 0.0)


def limits_of(row: MeasuredRow) -> Limits:
    """The latency limits of a row's system benchmark; no limits for other rows."""
    of = benchmark_of(row.source, row.model)
    return Limits() if of is None else workloads.load_workload(of.workload).spec.limits
