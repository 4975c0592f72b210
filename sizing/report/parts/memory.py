"""Memory of one GPU: its figures, and the line that reports share."""

from __future__ import annotations

from typing import NamedTuple

from sizing.formats.view import Line
from sizing.formats.words import gib
from sizing.memory import MemoryUse


class MemoryFigures(NamedTuple):
    """Memory of one GPU of the tightest rank, and what its cache pool holds over the replica.

    Of the weights `beside_gib` run beside the model (draft, adapters, image encoder); of the pool `shared_prefix_gib` are
    prefixes that sequences share.
    """

    visible_gib: float
    budget_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    cuda_graphs_gib: float
    cuda_graphs_in_budget: bool
    kv_cache_gib: float
    kv_bytes_per_token: float
    state_bytes_per_sequence: float
    kv_cache_tokens: int
    max_concurrency: float
    sequence_gib: float
    max_model_len: int
    max_model_len_that_fits: int
    fits: bool
    deficit_gib: float
    beside_gib: float = 0.0
    shared_prefix_gib: float = 0.0


def memory_figures(used: MemoryUse, longest: int) -> MemoryFigures:
    """Return the memory of a layout under the names of the contract, and the longest sequence that fits."""
    return MemoryFigures(
        visible_gib=used.visible_gib,
        budget_gib=used.budget_gib,
        weights_gib=used.weights_gib,
        activation_gib=used.activation_gib,
        non_torch_gib=used.non_torch_gib,
        cuda_graphs_gib=used.cuda_graphs_gib,
        cuda_graphs_in_budget=used.graphs_in_budget,
        kv_cache_gib=used.kv_cache_gib,
        kv_bytes_per_token=used.kv_bytes_per_token,
        state_bytes_per_sequence=used.fixed_bytes_per_sequence,
        kv_cache_tokens=used.kv_cache_tokens,
        max_concurrency=used.max_concurrency,
        sequence_gib=used.sequence_gib,
        max_model_len=used.max_model_len,
        max_model_len_that_fits=longest,
        fits=used.fits,
        deficit_gib=used.deficit_gib,
        beside_gib=used.beside_gib,
        shared_prefix_gib=used.shared_prefix_gib,
    )


def memory_line(m: MemoryFigures) -> Line:
    """One GPU's memory on a line: parts, pool, budget, visible."""
    graphs = f"CUDA graphs {gib(m.cuda_graphs_gib)}" + ("" if m.cuda_graphs_in_budget else " on top")
    beside = f" ({gib(m.beside_gib)} of them beside the model)" if m.beside_gib else ""
    shared = f" (shared prefixes {gib(m.shared_prefix_gib)})" if m.shared_prefix_gib else ""
    return Line(
        f"weights {gib(m.weights_gib)}{beside}, activation {gib(m.activation_gib)}, other {gib(m.non_torch_gib)}, {graphs}, "
        f"KV cache {gib(m.kv_cache_gib)}{shared} of {gib(m.budget_gib)} GiB budget ({gib(m.visible_gib)} visible)",
        "Memory per GPU",
    )
