"""What GPUs of a replica send each other in a step: sums and parts of tensors, tokens to experts, parts of caches."""

from __future__ import annotations

import numpy as np

from sizing.model import architecture
from sizing.model.architecture import Layout
from sizing.model.attention import pick
from sizing.model.attention.terms import Numeric
from sizing.model.operation import ACTIVATION_BYTES, Operation, busiest_load, dispatches
from sizing.model.shard import Shard
from sizing.specs.model import Attention, LayerKind, Model, MoeMlp

SUM_BYTES = 4  # of a query head: the log of the sum of its weights, 32 bit
TINY = 1e-12  # keeps a ratio of nothing finite


def all_reduce(name: str, model: Model, gpus: int, tokens: Numeric, count: float) -> Operation:
    """The all-reduce of the hidden states of `tokens` tokens over `gpus` GPUs."""
    message = tokens * model.hidden_size * ACTIVATION_BYTES
    return Operation(name, "all_reduce", count, message_bytes=message, gpus=gpus)


def pipeline_sends(shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """Messages between pipeline stages for `tokens` tokens of one replica; empty for one stage."""
    layout = shard.layout
    if layout.pp == 1:
        return ()
    message = tokens / layout.token_ranks * shard.model.hidden_size * ACTIVATION_BYTES / layout.tp
    return (Operation("pipeline_send", "send", layout.pp - 1, message_bytes=message, gpus=layout.stage_gpus),)


def of_layer(shard: Shard, kind: LayerKind, count: int, tokens: Numeric) -> list[Operation]:
    """One all-reduce after the mixer and one after the MLPs; experts of several attention ranks exchange their tokens."""
    found: list[Operation] = []
    model, layout = shard.model, shard.layout
    rank_tokens = tokens / layout.token_ranks
    routed = [mlp for mlp in kind.mlps if isinstance(mlp, MoeMlp)]
    if layout.tp > 1 and kind.mixer is not None and not (model.parallel_blocks and kind.mlps):
        found.append(all_reduce("mixer_all_reduce", model, layout.tp, rank_tokens, count))
    if layout.token_ranks > 1 and routed:
        if dispatches(layout, shard.settings):
            found += _dispatched(shard, routed[0], tokens, count)
        else:
            found += _gathered(shard, tokens, count)
    elif layout.tp > 1 and kind.mlps:
        found.append(all_reduce("mlp_all_reduce", model, layout.tp, rank_tokens, count))
    return found


def _gathered(shard: Shard, tokens: Numeric, count: int) -> list[Operation]:
    """Every GPU gets all tokens of the stage and adds up what its experts made of them."""
    message = tokens * shard.model.hidden_size * ACTIVATION_BYTES
    return [
        Operation(name, rule, count, message_bytes=message, gpus=shard.layout.stage_gpus, of_all=True)
        for name, rule in (("experts_all_gather", "all_gather"), ("experts_reduce_scatter", "reduce_scatter"))
    ]


def _dispatched(shard: Shard, mlp: MoeMlp, tokens: Numeric, count: int) -> list[Operation]:
    """Each token goes to the ranks of its experts, in their precision, and comes back from each at 16 bit.

    The busiest rank binds, of those that send and those that get: what one has to send it gets back. GPUs of a tensor-parallel group send a part of its tokens each, and gather them after.
    """
    layout, hidden_size = shard.layout, shard.model.hidden_size
    own = tokens / layout.stage_gpus
    mean = tokens * mlp.experts_per_token / layout.ep
    uneven = busiest_load(mean, layout, shard.settings) / np.maximum(mean, TINY)
    width = mlp.latent or hidden_size

    def send(name: str, value_bytes: float) -> Operation:
        return Operation(
            name,
            shard.settings.all2all_backend,
            count,
            message_bytes=own * uneven * width * value_bytes,
            gpus=layout.ep,
            fan_out=mlp.experts_per_token,
        )

    found = [send("experts_dispatch", shard.plan.input_bytes("expert")), send("experts_combine", ACTIVATION_BYTES)]
    if layout.tp > 1:
        message = tokens / layout.token_ranks * hidden_size * ACTIVATION_BYTES
        found.append(Operation("experts_all_gather", "all_gather", count, message_bytes=message, gpus=layout.tp))
    return found


def parts_joined(shard: Shard, sequences: Numeric) -> tuple[Operation, ...]:
    """Exchanges between GPUs with parts of the same caches, in a decode step of `sequences` sequences of a replica.

    They exchange queries before attention. After attention they add up outputs, weighted by the sum of each part
    (decode context parallelism in vLLM; pass-Q in arXiv:2411.01783).
    """
    found = []
    model, layout = shard.model, shard.layout
    tokens = sequences * shard.extras.verified / layout.dp
    heads_over = layout.tp // layout.dcp  # a part of a cache is read for the heads of all GPUs that DCP joins
    groups = (("dcp", layout.dcp, 1, tokens / layout.cp), ("cp", layout.cp, layout.tp, tokens))
    for name, gpus, apart, of_group in groups if layout.cache_parts > 1 else ():
        for index, count in architecture.whole(model).layers if gpus > 1 else ():
            mixer = model.kinds[index].mixer
            for what, rule, values_bytes in _exchanged(mixer) if mixer is not None else ():
                message = of_group * values_bytes / heads_over
                found.append(Operation(f"{name}_{what}", rule, count, message_bytes=message, gpus=gpus, apart=apart))
    return tuple(found)


def _exchanged(mixer: Attention) -> tuple[tuple[str, str, float], ...]:
    """(name, collective, bytes of all heads) of each exchange of one token."""
    heads, query_values, output_values = pick(mixer.kind).exchanged(mixer)
    return (
        ("queries", "all_gather", heads * query_values * ACTIVATION_BYTES),
        ("sums", "all_gather", heads * SUM_BYTES),
        ("outputs", "reduce_scatter", heads * output_values * ACTIVATION_BYTES),
    )


def keys_gathered(
    shard: Shard, kind: LayerKind, count: int, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> list[Operation]:
    """Exchanges that give each GPU all keys of a prompt: the cached ones and the new tokens of other ranks.

    They do not overlap with attention. A ring would (arXiv:2411.01783), but not every engine uses one.
    """
    found = []
    layout = shard.layout
    held = architecture.layer_cache(kind, Layout(tp=layout.tp), shard.plan.kv_bytes)
    seen = prior_tokens if held.window_tokens is None else np.minimum(prior_tokens, held.window_tokens)
    if layout.dcp > 1:
        message = sequences * seen * held.bytes_per_token / layout.cp
        found.append(Operation("dcp_keys", "all_gather", count, message_bytes=message, gpus=layout.dcp))
    if layout.cp > 1:
        message = sequences * (seen + tokens) * held.bytes_per_token
        found.append(Operation("cp_keys", "all_gather", count, message_bytes=message, gpus=layout.cp, apart=layout.tp))
    return found
