"""How figures came about: formula, values put in, source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sizing.formats.view import Explanation, Facts, Line
from sizing.formats.words import number
from sizing.report.parts.figures import MemoryFigures
from sizing.specs.engine import EngineSettings

POOL_FORMULAS = {
    "utilisation": "visible * memory_fraction - weights - activation - non_torch{graphs}",
    "free_before_load": "(visible - non_torch) * memory_fraction - weights; activation and graphs live in the rest",
    "free_after_load": "(visible - weights - activation - non_torch - graphs) * memory_fraction",
}


def of_memory(memory: MemoryFigures, settings: EngineSettings, kv_format: str) -> tuple[Explanation, ...]:
    """Explain the parts of one GPU's memory."""
    return tuple(_of_memory(memory, settings, kv_format))


def _of_memory(m: MemoryFigures, settings: EngineSettings, kv_format: str) -> Iterator[Explanation]:
    yield Explanation(
        "weights", m.weights_gib, "GiB", "derived",
        "sum over weight matrices of inputs * outputs * bytes of their format, as split over this GPU",
        "matrices and formats of the model's config", "config.json",
    )  # fmt: skip
    yield Explanation(
        "activation", m.activation_gib, "GiB", "derived",
        "max(tokens * (a*hidden + b*intermediate/tp), rows * vocabulary * sampler_bytes + 2*tokens*hidden)",
        f"tokens = max_num_batched_tokens = {settings.max_num_batched_tokens:,}, rows = min(max_num_seqs "
        f"{settings.max_num_seqs:,}, tokens), sampler_bytes = {settings.sampler_bytes_per_logit}, "
        f"a = {settings.forward_activation.per_hidden_bytes}, b = {settings.forward_activation.per_intermediate_bytes}",
        "engine profile",
    )  # fmt: skip
    graphs = " - graphs" if settings.graphs_in_budget else " (graphs come on top)"
    yield Explanation(
        "KV cache", m.kv_cache_gib, "GiB", "derived",
        POOL_FORMULAS[settings.pool_rule].format(graphs=graphs),
        f"visible {m.visible_gib:.2f}, memory_fraction {m.budget_gib / m.visible_gib:.3f}, weights {m.weights_gib:.2f}, "
        f"activation {m.activation_gib:.2f}, non_torch {m.non_torch_gib:.2f}, graphs {m.cuda_graphs_gib:.2f}",
        "engine profile, GPU profile",
    )  # fmt: skip
    yield Explanation(
        "max concurrency", m.max_concurrency, "sequences", "derived",
        "(KV cache - reserved blocks) / cache of one sequence of max_model_len tokens, in whole blocks",
        f"KV cache {m.kv_cache_gib:.2f} GiB, one sequence of {m.max_model_len:,} tokens {m.sequence_gib:.4f} GiB, "
        f"{m.kv_bytes_per_token:,.0f} bytes a token ({kv_format}), block {settings.block_tokens} tokens",
        "model's config, engine profile",
    )  # fmt: skip


def explained(explanations: Iterable[Explanation]) -> Iterator[Facts]:
    """Yield each number with its formula, the values put in, and their source."""
    for e in explanations:
        value = number(e.value, 5) if isinstance(e.value, float) else str(e.value)
        lines = (Line(e.formula, "  formula"), Line(e.inputs, "  values"), Line(e.source, "  source"))
        yield Facts(lines, f"{e.what} = {value} {e.unit}".rstrip() + f"  [{e.kind}]")
