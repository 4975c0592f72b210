"""Rows that no run can have given: refused with the reason, for their prediction would say nothing."""

from __future__ import annotations

from dataclasses import replace

from sizing.architecture import Layout
from sizing.catalog.measured_csv import MeasuredRow
from sizing.errors import Fault, InputError
from sizing.specs.model import Model
from sizing.validation.stated import NoteFacts

SHORTEST_DECODE = 2  # tokens of an output that has time between them


def check_stated(row: MeasuredRow, facts: NoteFacts) -> None:
    """Raise InputError for a row that states no result, results that contradict each other, or too little of its run."""
    if facts.refused:
        raise InputError(Fault(facts.refused))
    if not row.measured():
        raise InputError(Fault("states no result"))
    if row.itl_ms is not None and row.osl < SHORTEST_DECODE:
        raise InputError(Fault(f"there is none within outputs of {row.osl:g} tokens", field="itl_ms"))
    if row.ttft_ms is not None and row.e2e_ms is not None and row.e2e_ms < row.ttft_ms:
        raise InputError(Fault(f"{row.e2e_ms:g} is less than its part ttft_ms, {row.ttft_ms:g}", field="e2e_ms"))
    if row.mode == "closed_loop" and row.concurrency is None:
        raise InputError(Fault("states no concurrency", field="concurrency"))
    if row.mode == "static_batch" and row.batch is None:
        raise InputError(Fault("states no batch", field="batch"))
    if row.mode == "open_loop" and facts.rate_per_s is None:
        raise InputError(Fault("states no rate", field="notes", allowed="rate=..."))


def check_layout(row: MeasuredRow, ranks: int, layout: Layout, replicas: int) -> None:
    """Raise InputError unless a layout has the GPUs, the experts' parts and the attention ranks that a row states."""
    if row.n_gpus not in (None, layout.gpus * replicas):
        tp, pp = row.tp or 1, row.pp or 1
        message = f"{row.n_gpus} GPUs are no whole number of replicas of tp {tp} x pp {pp}"
        raise InputError(Fault(message, field="n_gpus", allowed=f"a multiple of {max(layout.gpus, tp * pp)}"))
    if row.ep not in (None, layout.ep):
        raise InputError(Fault(f"{row.ep} does not divide the {layout.tp * layout.dp} GPUs of a stage", field="ep"))
    if ranks not in (1, layout.dp):
        raise InputError(Fault(f"{ranks} ranks are more than the GPUs hold, {layout.dp}", field="attention_dp"))


def longest_of(row: MeasuredRow) -> int:
    """Return the tokens of a request of nominal lengths, prompt and output."""
    return max(2, round(row.isl) + round(row.osl))


def stretched(model: Model, row: MeasuredRow, factor: float) -> tuple[Model, str | None]:
    """Return a model that holds a row's requests, and a note where its config states fewer positions.

    Raises InputError for requests longer than `factor` times these.
    """
    longest, held = longest_of(row), model.max_position
    if longest <= held:
        return model, None
    if longest > factor * held:
        message = f"{longest:,} tokens (ISL + OSL) exceed the {held:,} positions of {model.name}"
        scaled = f"at most {factor * held:,.0f}, with positions scaled by {factor:g}"
        raise InputError(Fault(message, field="isl, osl", allowed=scaled))
    return replace(model, max_position=longest), f"requests beyond the {held:,} positions of {model.name}: scaled"
