"""The document of `llmsize memory`."""

from __future__ import annotations

from dataclasses import replace

from sizing import deployment as deployments
from sizing.architecture import Layout
from sizing.deployment import Resolved
from sizing.report.documents import MemoryReport
from sizing.report.parts import assumptions, bands, explain
from sizing.report.parts.memory import memory_figures
from sizing.report.parts.question import candidate_of, inputs_of_layout


def build(resolved: Resolved, *, explained: bool = False) -> MemoryReport:
    """Return the memory of one layout; where a sequence does not fit, what is missing and what would make it fit."""
    figures = memory_figures(resolved.memory, resolved.longest_that_fits())
    fits = resolved.memory.fits and resolved.refused is None
    predicted = tuple(bands.of_memory(figures, resolved.request.situation(resolved.option.gpu)))
    report = MemoryReport(
        fits=fits,
        inputs=inputs_of_layout(resolved),
        memory=figures,
        bands=bands.bounds(predicted),
        reason=_reason(resolved),
        suggestions=() if fits else tuple(_suggestions(resolved)),
        assumptions=(
            *assumptions.of_model(resolved.request, resolved.notes),
            *assumptions.of_memory(resolved.request, candidate_of(resolved)),
        ),
    )
    if not explained:
        return report
    explanations = explain.of_memory(figures, resolved.settings, resolved.plan.kv_format)
    return report._replace(explanations=(*explanations, *bands.explanations(predicted)))


def _reason(resolved: Resolved) -> str | None:
    if resolved.refused is not None:
        return f"{resolved.layout} is refused: {resolved.refused}"
    if resolved.memory.fits:
        return None
    one = f"one sequence of {resolved.memory.max_model_len:,} tokens"
    if resolved.memory.shared_prefix_gib:
        needing = f"{one} and {resolved.memory.shared_prefix_gib:,.1f} GiB of shared prefixes need"
    else:
        needing = f"{one} needs"
    return f"does not fit: {needing} {resolved.memory.deficit_gib:,.1f} GiB more per GPU"


def _suggestions(resolved: Resolved) -> list[str]:
    """Return the changes that make it fit, each checked: a shorter length, more GPUs, FP8 weights, an FP8 cache."""
    found = []
    longest = resolved.longest_that_fits()
    if resolved.refused is None and longest > 0 and resolved.request.extras.cached.within(longest):
        found.append(f"--max-model-len {longest:,}".replace(",", ""))
    for tp in range(resolved.layout.tp + 1, resolved.option.gpu.datasheet.island_gpus + 1):
        if _fits(resolved, layout=replace(resolved.layout, tp=tp)):
            found.append(f"--tp {tp}")
            break
    if resolved.plan.weight_bits > 8 and _fits(resolved, precision="fp8"):
        found.append("--precision fp8")
    if resolved.plan.kv_bits > 8 and _fits(resolved, kv_precision="fp8"):
        found.append("--kv-precision fp8")
    return found


def _fits(
    resolved: Resolved,
    *,
    layout: Layout | None = None,
    precision: str | None = None,
    kv_precision: str | None = None,
) -> bool:
    request = resolved.request if kv_precision is None else replace(resolved.request, kv_precision=kv_precision)
    tried = deployments.resolve(
        request,
        resolved.option,
        layout or resolved.layout,
        precision or resolved.plan.weight_format,
        resolved.data,
    )
    return tried.refused is None and tried.memory.fits
