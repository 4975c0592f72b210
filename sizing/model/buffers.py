"""Other kernel buffers of one GPU: workspace of attention kernels, buffers for the exchange of tokens with experts."""

from __future__ import annotations

from typing import Literal

from sizing.model import architecture
from sizing.model.architecture import Shard
from sizing.model.operations import dispatches
from sizing.specs.model import Heads, MoeMlp
from sizing.specs.units import MIB


def workspace_bytes(shard: Shard) -> float:
    """Bytes of the attention kernels' workspace on one GPU, by the widest queries of a layer."""
    rule = shard.settings.attention_workspace
    widths = [kind.mixer.q_heads * kind.mixer.head_dim for kind in shard.model.kinds if isinstance(kind.mixer, Heads)]
    if rule is None or (rule.caches and shard.plan.kv_format not in rule.caches) or shard.model.pooled:
        return 0.0
    values = shard.settings.max_num_batched_tokens * max(widths, default=0) / shard.layout.tp
    return max(rule.mib * MIB, rule.per_query_value_bytes * values)


def why_no_exchange(shard: Shard) -> Literal["engine", "layout"] | None:
    """The reason why no memory is kept for an exchange under any all-to-all backend; None where a backend needs some."""
    more = shard.settings.reserve_more
    if shard.settings.exchange_buffers is None and not (more is not None and more.exchange_mib):
        return "engine"
    spread = shard.settings.model_copy(update={"all2all_backend": "low_latency"})
    return None if dispatches(shard.layout, spread) else "layout"


def exchange_bytes(shard: Shard) -> float:
    """Bytes of the buffers through which one GPU's tokens reach experts on other GPUs; 0 if all tokens are gathered.

    With low latency, every expert has space for the messages of each token of a rank.
    """
    rule, settings, model = shard.settings.exchange_buffers, shard.settings, shard.model
    if rule is None or not architecture.is_moe(model) or not dispatches(shard.layout, settings):
        return 0.0
    if settings.all2all_backend == "high_throughput":
        return rule.high_throughput_mib * MIB
    experts = max(mlp.slots for kind in model.kinds for mlp in kind.mlps if isinstance(mlp, MoeMlp))
    sent = rule.message.copies * experts * rule.low_latency_tokens * rule.message.bytes_of(model.hidden_size)
    return rule.low_latency_mib * MIB + sent
