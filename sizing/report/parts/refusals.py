"""What hardware or engine refuses of a layout, a length or a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sizing.answers.resolved import Resolved
from sizing.specs.errors import Fault

OPTION_OF_REASON = {"sparsity": "--sparsity", "engine": "--engine"}  # the others are the layout's


def layout_faults(resolved: Resolved) -> Iterator[Fault]:
    """Yield why hardware or engine won't run the layout."""
    for reason, detail in resolved.refusals:
        if reason in OPTION_OF_REASON:
            yield Fault(detail, field=OPTION_OF_REASON[reason])
        else:
            yield Fault(f"{resolved.layout} is refused: {detail}", field="--tp, --pp, --ep, --dp, --cp, --dcp")


def length_faults(resolved: Resolved, lengths: Iterable[tuple[str, int]]) -> Iterator[Fault]:
    """Yield the lengths in tokens, each with its option, that are longer than the engine takes."""
    longest, model = resolved.question.service.max_model_len, resolved.question.service.model
    held = f"the model's {longest:,} positions" if longest == model.max_position else f"--max-model-len {longest:,}"
    for option, tokens in lengths:
        if tokens > longest:
            yield Fault(f"{tokens:,} tokens exceed {held}", field=option, allowed=f"at most {longest:,}")


def batch_faults(resolved: Resolved, decode: int, prefill: int, options: tuple[str, str]) -> Iterator[Fault]:
    """Yield what an engine's replica would not run in one step: each of its attention groups has limits of its own, and a
    prompt is on one of them.

    `options` name what states the sequences and what states the tokens.
    """
    groups, settings = resolved.layout.dp, resolved.settings
    of_sequences, of_tokens = options
    verified = resolved.question.service.extras.verified
    for option, amount, noun, name, most in (
        (of_sequences, decode + bool(prefill), "sequences", "max-num-seqs", settings.max_num_seqs),
        (of_tokens, decode * verified + prefill, "tokens", "max-num-batched-tokens", settings.max_num_batched_tokens),
    ):
        if amount > most * groups:
            held = f"{most:,}" + (f" on each of {groups} groups" if groups > 1 else "")
            yield Fault(
                f"{amount:,} {noun} are more than the engine takes in a step ({held})",
                field=option,
                allowed=f"at most {most * groups:,}, or a larger --{name}",
            )
        elif noun == "tokens" and prefill > most:
            yield Fault(
                f"a prompt's {prefill:,} tokens are more than its attention group takes in a step ({most:,})",
                field=option,
                allowed=f"at most {most:,}, or a larger --{name}",
            )
