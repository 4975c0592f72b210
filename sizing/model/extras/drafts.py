"""Speculative decoding: the draft (a small model, heads, or modules of the checkpoint) and the tokens that a step gives.

The method asked for (`specs.optimisations`) and published facts become a `Speculation`. If no draft is named, it is built
from the target's own parts. This does not depend on a GPU or a layout; only the draft's operations and sizes do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from sizing.model import architecture, operations
from sizing.model.architecture import Layout, Shard
from sizing.model.attention import KEY_AND_VALUE, Matrix, Numeric
from sizing.model.extras import Draft, Speculation
from sizing.model.operations import Operation, gemm
from sizing.model.precision import PrecisionPlan
from sizing.specs.errors import Fault, InputError
from sizing.specs.model import (
    DenseMlp,
    GqaAttention,
    LayerKind,
    Model,
    MoeMlp,
    Mtp,
    Quantisation,
    SlidingWindowAttention,
)
from sizing.specs.optimisations import Speculative

if TYPE_CHECKING:
    from sizing.specs.facts import DraftHead, Method


FIELD = "optimisations.speculative"


def speculation(
    speculative: Speculative,
    method: Method,
    target: Model,
    drafting: Model | None,
    with_modules: Callable[[], Iterable[str]] = tuple,
) -> Speculation:
    """Speculative decoding as `speculative`, completed with the published values of `method`.

    `with_modules` names models with multi-token prediction modules, for the error message about a model without them.
    Raises InputError if no acceptance is known, if the vocabulary of `drafting` differs, or if the checkpoint lacks modules
    that the method needs.
    """
    acceptance = method.acceptance if speculative.acceptance is None else speculative.acceptance
    stated = speculative.by_depth or (() if acceptance is None else (acceptance,))
    tokens = speculative.tokens or method.tokens
    if not stated:
        what = f"{method.title} has no published acceptance that holds for other texts"
        allowed = f"{speculative.method}:{tokens}@ACCEPTANCE, as measured on your own"
        raise InputError(what, field=FIELD, allowed=allowed)
    draft = None
    if drafting is not None:
        draft = _draft_model(target, drafting, tokens, method.vocabulary_within or 0.0)
    elif method.head is not None:
        if method.head.of_checkpoint and not has_modules(target):
            raise InputError(_no_modules(method, target, with_modules()))
        draft = _drafting_head(method.head, target, tokens)
    known = ("assumed", "as asked") if speculative.states_acceptance else (method.evidence, method.source)
    return Speculation(method.title, tokens, _of_each(stated, tokens), draft, *known, method.needs)


def _of_each(stated: Sequence[float], tokens: int) -> tuple[float, ...]:
    """Acceptance of each drafted token. The last `stated` value repeats. Raises InputError for too many values."""
    if len(stated) > tokens:
        what = f"{len(stated)} acceptances of {tokens} drafted tokens"
        raise InputError(what, field=FIELD, allowed=f"at most {tokens}")
    return (*stated, *[stated[-1]] * (tokens - len(stated)))


def _draft_model(target: Model, drafting: Model, tokens: int, within: float) -> Draft:
    own, other = drafting.vocab_size, target.vocab_size
    if not other * (1 - within) <= own <= other * (1 + within):
        what = f"{drafting.name} has a vocabulary of {own:,}, {target.name} one of {other:,}: it cannot draft for it"
        raise InputError(what, field=FIELD, allowed="a draft model with the target's tokenizer")
    return Draft(drafting, tokens, shares_vocabulary=False)


def has_modules(model: Model) -> bool:
    """Whether the config of `model` states modules for multi-token prediction."""
    return model.mtp is not None and model.mtp.modules > 0


def _no_modules(method: Method, target: Model, others: Iterable[str]) -> Fault:
    stated = "states no modules for it" if target.mtp is None else f"says that it has none ({target.mtp.field})"
    what, known = f"{target.name} cannot draft by {method.title}: its config {stated}", ", ".join(others)
    remedy = f"use another method, as eagle3 or draft:MODEL; or {method.needs}" + (f": {known}" if known else "")
    return Fault(what, field=FIELD, remedy=remedy)


def _drafting_head(head: DraftHead, target: Model, tokens: int) -> Draft:
    """The checkpoint's modules, a head of decoder layers, or a residual block and an output head per drafted token (Medusa)."""
    if head.of_checkpoint and (mtp := target.mtp) is not None:
        model, own = module_model(target, mtp), not mtp.kept_16bit
        join = _join(head, target)
        return Draft(model, tokens, each=join, follows_precision=own, modules=mtp.modules, of_checkpoint=True)
    if not head.parallel_heads:
        return _head(head, target, tokens)
    hidden, vocabulary = target.hidden_size, head.vocabulary or target.vocab_size
    residual = Matrix("draft_residual", "dense_mlp", hidden, hidden, copies=tokens)
    return Draft(None, 1, heads=(residual, Matrix("draft_heads", "lm_head", hidden, vocabulary, copies=tokens)))


def module_model(target: Model, mtp: Mtp) -> Model:
    """One multi-token prediction module as a model, with the embedding and output head of `target`."""
    kinds = tuple(dict.fromkeys(mtp.layers))
    stored = Quantisation(target.activation_precision) if mtp.kept_16bit else target.quantisation
    return _beside(target, "MTP module", kinds, tuple(map(kinds.index, mtp.layers)), stored)


def _beside(
    target: Model, name: str, kinds: tuple[LayerKind, ...], layers: tuple[int, ...], stored: Quantisation
) -> Model:
    """A model with the sizes of `target` and only these `layers`."""
    alone = replace(target, extra_parameters=0, vision_parameters=0, mtp=None, checkpoint_bytes=None)
    return replace(alone, name=f"{name} of {target.name}", kinds=kinds, layers=layers, quantisation=stored)


def _join(head: DraftHead, target: Model) -> Matrix | None:
    hidden = target.hidden_size
    return Matrix("draft_join", "dense_mlp", head.joined_states * hidden, hidden) if head.joined_states else None


def _head(head: DraftHead, target: Model, tokens: int) -> Draft:
    """A draft head: decoder layers like the last layer of `target`, with a dense MLP."""
    last = target.kinds[target.layers[-1]]
    kind, stored = replace(last, mlps=(_dense(last, target),)), Quantisation(target.activation_precision)
    model = _beside(target, "draft head", (kind,), (0,) * head.layers, stored)
    model = replace(model, vocab_size=head.vocabulary or target.vocab_size)
    join, mixer, shares = _join(head, target), kind.mixer, head.vocabulary is None
    if not head.widened:
        return Draft(model, tokens, each=join, shares_vocabulary=shares)
    widened = None
    if isinstance(mixer, (GqaAttention, SlidingWindowAttention)):
        outputs = (mixer.q_heads + KEY_AND_VALUE * mixer.kv_heads) * mixer.head_dim
        widened = Matrix("draft_widened_qkv", "attention", target.hidden_size, outputs)
    return Draft(model, tokens, joined=join, each=widened, shares_vocabulary=shares)


def _dense(kind: LayerKind, target: Model) -> DenseMlp:
    """The widest dense MLP of `target`, or one as wide as the active experts of a token."""
    dense = [mlp for each in target.kinds for mlp in each.mlps if isinstance(mlp, DenseMlp)]
    if dense:
        return max(dense, key=lambda mlp: mlp.intermediate)
    met = [mlp for mlp in kind.mlps if isinstance(mlp, MoeMlp)]
    return DenseMlp(sum(m.experts_per_token * m.intermediate + m.shared_intermediate for m in met), gated=True)


# --- on GPUs: kernels of the draft's own plan time it, so its operations are separate from the model's -----------------


def body(draft: Draft, shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """The first pass of a draft in a step, over the replica's `tokens` of the target's step; `shard` is the draft's shard."""
    joined = [] if draft.joined is None else [_product(draft.joined, shard, tokens, 1)]
    return (*joined, *_pass(draft, shard, tokens))


def _pass(draft: Draft, shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    found = [] if draft.each is None else [_product(draft.each, shard, tokens, 1)]
    if draft.model is not None:
        found += operations.split_body(shard, tokens)
    return _named(found)


def further(draft: Draft, shard: Shard, sequences: Numeric) -> tuple[Operation, ...]:
    """The draft's work per decoding sequence after its first pass: heads and further passes."""
    found = [_product(head, shard, sequences, head.copies) for head in draft.heads]
    if draft.model is not None:
        found += [_times(o, draft.passes) for o in operations.head(shard, sequences)]
    passes = _pass(draft, shard, sequences) if draft.passes > 1 else ()
    return (*_named(found), *(_times(o, draft.passes - 1) for o in passes))


def decode_attention(draft: Draft, shard: Shard, sequences: Numeric, context_tokens: Numeric) -> tuple[Operation, ...]:
    """The decode attention of all passes of a draft."""
    if draft.model is None:
        return ()
    return _named([_times(o, draft.passes) for o in operations.decode_attention(shard, sequences, context_tokens)])


def prefill_attention(
    draft: Draft, shard: Shard, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> tuple[Operation, ...]:
    """The prefill attention of a draft, whose cache holds the prompt like the target's."""
    if draft.model is None:
        return ()
    return _named(operations.prefill_attention(shard, sequences, tokens, prior_tokens))


def _named(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    return tuple(o if o.name.startswith("draft") else replace(o, name=f"draft_{o.name}") for o in operations)


def _times(operation: Operation, times: float) -> Operation:
    return replace(operation, count=operation.count * times)


def _split(matrix: Matrix, tp: int) -> Matrix:
    return matrix._replace(outputs=matrix.outputs / tp)


def _product(matrix: Matrix, shard: Shard, tokens: Numeric, count: float) -> Operation:
    return gemm(_split(matrix, shard.layout.tp), tokens / shard.layout.token_ranks, count, shard.plan)


@lru_cache(maxsize=4096)
def weight_bytes(draft: Draft, shard: Shard) -> float:
    """Bytes of a draft's weights on one GPU, without an embedding or head that it shares with the target."""
    matrices = [(_split(m, shard.layout.tp), 1) for m in (*draft.heads, draft.joined, draft.each) if m is not None]
    if draft.model is not None:
        for matrix, count in architecture.stage_matrices(shard.model, architecture.whole(shard.model), shard.held):
            shared = matrix.role == "embedding" or (matrix.role == "lm_head" and draft.shares_vocabulary)
            if not (shared and draft.each is not None):  # a head reads the target's own embedding
                matrices.append((matrix, count))
    return draft.modules * sum(
        count * matrix.copies * (matrix.inputs * matrix.outputs + matrix.bias) * shard.weight_bytes(matrix)
        for matrix, count in matrices
    )


def cache_bytes(draft: Draft, shard: Shard) -> float:
    """Cache bytes that a draft keeps for one token on one GPU."""
    if draft.model is None:
        return 0.0
    layers = architecture.whole(shard.model).layers
    return draft.modules * sum(count * shard.cache(index).bytes_per_token for index, count in layers)


def module_bytes(model: Model, plan: PrecisionPlan) -> float:
    """Bytes of the layers of all multi-token prediction modules in a checkpoint; engines load them only to draft."""
    mtp = model.mtp
    if mtp is None:
        return 0.0
    module = module_model(model, mtp)
    return mtp.modules * sum(
        count * matrix.parameters * (plan.weight_bytes("norm") if mtp.kept_16bit else plan.weight_bytes(matrix.role))
        for index, count in architecture.whole(module).layers
        for matrix in architecture.layer_matrices(module, index, Layout())
    )
