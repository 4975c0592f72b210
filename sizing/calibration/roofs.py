"""The least times and the highest rate of a run by the datasheet of its GPU. A run beyond them cannot have been measured."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.catalog.imports.run import PREFIXES_KEPT
from sizing.evidence.rows import Case
from sizing.replica.intensity import StepWork, work
from sizing.replica.step import Batch, batch_operations
from sizing.specs.errors import Fault
from sizing.specs.units import MILLI

ALLOWED = "figures in ms and requests/s, with the GPU, the precision, the layout and the lengths that were run"


def impossible(case: Case) -> Iterator[Fault]:
    """Yield a fault for each metric of a run that is better than the memory and the compute of its GPU allow.

    The bounds are those of one request alone, so that no batch is faster. Prompts that were found in cache have no bound.
    """
    row, replica = case.row, case.replica
    asked = replica.service.optimisations
    if asked.speculative is not None or asked.prefix is not None or PREFIXES_KEPT in row.notes:
        return
    shortest = 1.0 if row.length_ratio_min is None else row.length_ratio_min
    isl, osl = max(1.0, row.isl * shortest), max(1.0, row.osl * shortest)
    gpu, layout = replica.gpu_type.gpu.name, replica.layout
    decode = _work(case, Batch(decode_sequences=1.0, decode_context_tokens=isl))
    prefill = _work(case, Batch(prefill_sequences=1.0, prefill_tokens=isl, finishing=1.0))
    bounds = {"itl_ms": decode, "ttft_ms": prefill}
    for name, least in bounds.items():
        value, least_ms = getattr(row, name), least.least_s / MILLI
        if value is not None and value < least_ms:
            bound = "read the weights and the cache" if least.memory_s >= least.compute_s else "compute the prompt"
            message = f"row {row.id}: {value:,.3g} ms are less than {gpu} as {layout} takes to {bound} at the datasheet's peak, {least_ms:,.3g} ms"
            yield Fault(message, field=name, allowed=ALLOWED)
    compute_s = prefill.compute_s + (osl - 1) * decode.compute_s
    most = case.deployed.count * layout.gpus / layout.tp / compute_s
    rate = row.req_per_s if row.req_per_s is not None else (row.output_tok_per_s or 0.0) / row.osl
    if rate > most:
        message = f"row {row.id}: {rate:,.4g} requests/s are more than {case.deployed.count} x {gpu} as {layout} compute at the datasheet's peak, {most:,.4g}"
        yield Fault(message, field="req_per_s", allowed=ALLOWED)


def _work(case: Case, batch: Batch) -> StepWork:
    kernels = case.deployed.kernels
    return work(batch_operations(kernels.shard, batch), kernels)
