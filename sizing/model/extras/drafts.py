"""Speculative decoding: what drafts (a small model, heads, the checkpoint's own modules), and the tokens that a step gives.

A method as asked (`specs.optimisations`) with what is published of it becomes a `Speculation`, with a draft made of the
target's own parts where nothing else is named. Nothing here depends on a GPU or a layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sizing.model.attention.terms import KEY_AND_VALUE, Matrix
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


@dataclass(frozen=True, slots=True)
class Draft:
    """What drafts: a small model that runs `passes` times a step, or heads that each sequence's last state goes through.

    `joined` projects the target's hidden states once a step, `each` stands in front of the model in every pass. Weights have
    the draft's own precision unless it `follows_precision` of the target. Of `modules` equal models each holds weights and
    cache, and a pass runs through one; `of_checkpoint` marks those that the model's own checkpoint brings.
    """

    model: Model | None
    passes: int
    joined: Matrix | None = None
    each: Matrix | None = None
    heads: tuple[Matrix, ...] = ()
    follows_precision: bool = False
    shares_vocabulary: bool = True
    modules: int = 1
    of_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding: `tokens` drafted a step, each accepted with a chance, and what drafts them (None: no GPU time).

    `acceptance` has the chance of each, given that those before it were accepted. `source` says where the acceptance is from, `needs` what must be there.
    """

    method: str
    tokens: int
    acceptance: tuple[float, ...]
    draft: Draft | None
    evidence: str = "assumed"
    source: str = "as asked"
    needs: str = ""

    @property
    def verified(self) -> int:
        """Tokens of a sequence in a step of the target: the drafted ones and the one that follows them."""
        return self.tokens + 1

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step gives a sequence, on average."""
        return expected_by_depth(self.acceptance)


def expected_tokens(acceptance: float, tokens: int) -> float:
    """Tokens a step gives: E = (1 - a^(g+1))/(1 - a), all g+1 at a = 1 (Leviathan et al., arXiv:2211.17192, eq. 1)."""
    return float(tokens + 1) if acceptance == 1 else (1 - acceptance ** (tokens + 1)) / (1 - acceptance)


def expected_by_depth(acceptance: Sequence[float]) -> float:
    """Tokens a step gives where each drafted one has its own chance: E = 1 + a1 + a1*a2 + ...; the formula above where all are equal."""
    if len(set(acceptance)) == 1:
        return expected_tokens(acceptance[0], len(acceptance))
    return 1.0 + sum(math.prod(acceptance[: depth + 1]) for depth in range(len(acceptance)))


def speed_up(acceptance: float, tokens: int, cost: float) -> float:
    """Steps saved over time added where verification is free: E/(g*c + 1), c = draft over target step (the same, theorem 3.8).

    An upper bound for any model whose verification is not free; the step model says how much of it is left.
    """
    return expected_tokens(acceptance, tokens) / (tokens * cost + 1)


def speculation(
    asked: Speculative,
    method: Method,
    target: Model,
    drafting: Model | None,
    with_modules: Callable[[], Iterable[str]] = tuple,
) -> Speculation:
    """Return speculative decoding as asked, the method's published values where it is silent.

    `with_modules` names models that have what a method needs of a checkpoint, for one that lacks it. Raises InputError where an acceptance is needed, where a draft model has another vocabulary, or where a checkpoint lacks
    the modules that the method drafts with.
    """
    one = method.acceptance if asked.acceptance is None else asked.acceptance
    stated = asked.by_depth or (() if one is None else (one,))
    if not stated:
        raise InputError(
            Fault(
                f"{method.title} has no published acceptance that holds for other texts",
                field="optimisations.speculative",
                allowed=f"{asked.method}:{asked.tokens or method.tokens}@ACCEPTANCE, as measured on your own",
            )
        )
    tokens = asked.tokens or method.tokens
    draft = None
    if drafting is not None:
        draft = _draft_model(target, drafting, tokens)
    elif method.head is not None:
        if method.head.of_checkpoint and not has_modules(target):
            raise InputError(_no_modules(method, target, with_modules()))
        draft = _drafting_head(method.head, target, tokens)
    as_asked = asked.acceptance is not None or asked.by_depth is not None
    known = ("assumed", "as asked") if as_asked else (method.evidence, method.source)
    return Speculation(method.title, tokens, _of_each(stated, tokens), draft, *known, method.needs)


def _of_each(stated: Sequence[float], tokens: int) -> tuple[float, ...]:
    """Return the acceptance of each drafted token; the last one stated holds for those beyond. Raises InputError for too many."""
    if len(stated) > tokens:
        raise InputError(
            Fault(
                f"{len(stated)} acceptances of {tokens} drafted tokens",
                field="optimisations.speculative",
                allowed=f"at most {tokens}",
            )
        )
    return (*stated, *[stated[-1]] * (tokens - len(stated)))


def _draft_model(target: Model, drafting: Model, tokens: int) -> Draft:
    if drafting.vocab_size > target.vocab_size * 1.05 or drafting.vocab_size < target.vocab_size * 0.95:
        raise InputError(
            Fault(
                f"{drafting.name} has a vocabulary of {drafting.vocab_size:,}, {target.name} one of {target.vocab_size:,}: "
                "it cannot draft for it",
                field="optimisations.speculative",
                allowed="a draft model with the target's tokenizer",
            )
        )
    return Draft(drafting, tokens, shares_vocabulary=False)


def has_modules(model: Model) -> bool:
    """Return whether a model's config states modules for multi-token prediction."""
    return model.mtp is not None and model.mtp.modules > 0


def _no_modules(method: Method, target: Model, others: Iterable[str]) -> Fault:
    stated = "states no modules for it" if target.mtp is None else f"says that it has none ({target.mtp.field})"
    known = ", ".join(others)
    return Fault(
        f"{target.name} cannot draft by {method.title}: its config {stated}",
        field="optimisations.speculative",
        allowed=f"another method, as eagle3 or draft:MODEL; or {method.needs}" + (f": {known}" if known else ""),
    )


def _drafting_head(head: DraftHead, target: Model, tokens: int) -> Draft:
    if head.of_checkpoint and (mtp := target.mtp) is not None:
        model, own = module_model(target, mtp), not mtp.kept_16bit
        join = _join(head, target)
        return Draft(model, tokens, each=join, follows_precision=own, modules=mtp.modules, of_checkpoint=True)
    return _parallel_heads(head, target, tokens) if head.parallel_heads else _head(head, target, tokens)


def module_model(target: Model, mtp: Mtp) -> Model:
    """Return one multi-token prediction module of a model, with the target's own embedding and output head."""
    kinds = tuple(dict.fromkeys(mtp.layers))
    stored = Quantisation(target.activation_precision) if mtp.kept_16bit else target.quantisation
    return _beside(target, "MTP module", kinds, tuple(map(kinds.index, mtp.layers)), stored)


def _beside(
    target: Model, name: str, kinds: tuple[LayerKind, ...], layers: tuple[int, ...], stored: Quantisation
) -> Model:
    """Return a model of the target's sizes that has nothing but these layers."""
    return replace(
        target,
        name=f"{name} of {target.name}",
        kinds=kinds,
        layers=layers,
        extra_parameters=0,
        vision_parameters=0,
        mtp=None,
        checkpoint_bytes=None,
        quantisation=stored,
    )


def _join(head: DraftHead, target: Model) -> Matrix | None:
    hidden = target.hidden_size
    return Matrix("draft_join", "dense_mlp", head.joined_states * hidden, hidden) if head.joined_states else None


def _head(head: DraftHead, target: Model, tokens: int) -> Draft:
    """Return a head of decoder layers as the target's last one, with a dense MLP."""
    last = target.kinds[target.layers[-1]]
    kind = replace(last, mlps=(_dense(last, target),))
    stored = Quantisation(target.activation_precision)
    model = replace(
        _beside(target, "draft head", (kind,), (0,) * head.layers, stored),
        vocab_size=head.vocabulary or target.vocab_size,
    )
    hidden, join = target.hidden_size, _join(head, target)
    mixer = kind.mixer
    widened = None
    if head.widened and isinstance(mixer, (GqaAttention, SlidingWindowAttention)):
        outputs = (mixer.q_heads + KEY_AND_VALUE * mixer.kv_heads) * mixer.head_dim
        widened = Matrix("draft_widened_qkv", "attention", hidden, outputs)
    return Draft(
        model,
        tokens,
        joined=join if head.widened else None,
        each=widened if head.widened else join,
        shares_vocabulary=head.vocabulary is None,
    )


def _dense(kind: LayerKind, target: Model) -> DenseMlp:
    """Return a dense MLP as wide as the target's densest one, or as the experts that a token meets."""
    dense = [mlp for each in target.kinds for mlp in each.mlps if isinstance(mlp, DenseMlp)]
    if dense:
        return max(dense, key=lambda mlp: mlp.intermediate)
    met = [mlp for mlp in kind.mlps if isinstance(mlp, MoeMlp)]
    return DenseMlp(sum(m.experts_per_token * m.intermediate + m.shared_intermediate for m in met), gated=True)


def _parallel_heads(head: DraftHead, target: Model, tokens: int) -> Draft:
    """Return a residual block and an output head for each drafted token (Medusa)."""
    hidden = target.hidden_size
    heads = (
        Matrix("draft_residual", "dense_mlp", hidden, hidden, copies=tokens),
        Matrix("draft_heads", "lm_head", hidden, head.vocabulary or target.vocab_size, copies=tokens),
    )
    return Draft(None, 1, heads=heads)
