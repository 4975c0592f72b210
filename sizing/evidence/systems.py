"""Benchmarks of whole systems: what a submitter chooses, the best submission of a system, the most requests/s within limits.

Rows of such a benchmark state what a system of so many GPUs reached, neither lengths nor layout.
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
SENT = 6000  # requests of one replica in a try, several times those in flight: a ramp alone would keep any limit
TRIES = 7  # each halves the range of rates
RANGE = (0.4, 1.2)  # of the rate of all requests at once, ramp and drain included: where the search begins and ends


def submissions(row: MeasuredRow) -> Iterator[MeasuredRow]:
    """The row as each run that its submitter chooses among; itself where it is of no benchmark of systems."""
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


def _weights(of: SystemBenchmark, row: MeasuredRow) -> str:
    """The first of the benchmark's formats that the GPU multiplies in, else what the row states."""
    try:
        tflops = profiles.load_gpu(row.gpu).spec.datasheet.dense_tflops
    except InputError:
        return row.weight_precision
    native = (name for name in of.weights if getattr(tflops, peak_of(name)) is not None)
    return next(native, row.weight_precision)


def outdone(rows: Sequence[MeasuredRow]) -> dict[int, str]:
    """The rows, by number, that a better submission of the same system outdoes, with the name of the best."""
    best: dict[tuple[object, ...], int] = {}
    found: list[tuple[int, tuple[object, ...]]] = []
    for number, row in enumerate(rows):
        if benchmark_of(row.source, row.model) is None:
            continue
        system = (row.source, row.mode, row.engine, row.model, row.gpu, row.n_gpus)
        found.append((number, system))
        if system not in best or reached(row) > reached(rows[best[system]]):
            best[system] = number
    return {number: rows[best[system]].id for number, system in found if best[system] != number}


def reached(row: MeasuredRow) -> float:
    """Tokens/s of a row of a benchmark of systems, or its requests/s in tokens."""
    return row.output_tok_per_s or (row.req_per_s or 0.0) * row.osl


def most_within(deployed: Deployment, traffic: Traffic, limits: Limits) -> Run | None:
    """The run with the most requests/s that keeps limits under Poisson arrivals, of one replica; None where none does.

    Found between shares of the rate of all requests at once, to within a hundredth of it.
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
    """Tokens/s of a prediction, or requests/s where it has none."""
    return values.get("output_tok_per_s") or values.get("req_per_s", 0.0)


def limits_of(row: MeasuredRow) -> Limits:
    """The limits of the ready workload that a row's requests are of."""
    of = benchmark_of(row.source, row.model)
    return Limits() if of is None or of.workload is None else workloads.load_workload(of.workload).spec.limits
