"""Faults of layouts, lengths and batches that the hardware or the engine refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sizing.answers.deployment import Resolved
from sizing.specs.errors import Fault

OPTION_OF_REASON = {"sparsity": "--sparsity", "engine": "--engine"}  # all other reasons belong to the layout


def layout_faults(resolved: Resolved) -> Iterator[Fault]:
    """Yield the faults of a layout that the hardware or the engine refuses."""
    for reason, detail in resolved.refusals:
        if reason in OPTION_OF_REASON:
            yield Fault(detail, field=OPTION_OF_REASON[reason])
        else:
            yield Fault(f"{resolved.layout} is refused: {detail}", field="--tp, --pp, --ep, --dp, --cp, --dcp")


def length_faults(resolved: Resolved, lengths: Iterable[tuple[str, int]]) -> Iterator[Fault]:
    """Yield the faults of `lengths` (tokens by option) that exceed the engine's maximum."""
    longest, model = resolved.question.service.max_model_len, resolved.question.service.model
    maximum = f"the model's {longest:,} positions" if longest == model.max_position else f"--max-model-len {longest:,}"
    for option, tokens in lengths:
        if tokens > longest:
            yield Fault(f"{tokens:,} tokens exceed {maximum}", field=option, allowed=f"at most {longest:,}")


def batch_faults(resolved: Resolved, decode: int, prefill: int, options: tuple[str, str]) -> Iterator[Fault]:
    """Yield the faults of a batch that exceeds one step of an engine's replica.

    Each attention group has its own limits, and a prompt runs on one group. `options` names the option of the sequences and
    the option of the tokens.
    """
    groups, settings = resolved.layout.dp, resolved.settings
    of_sequences, of_tokens = options
    verified = resolved.question.service.extras.verified
    for option, amount, noun, name, most in (
        (of_sequences, decode + bool(prefill), "sequences", "max-num-seqs", settings.max_num_seqs),
        (of_tokens, decode * verified + prefill, "tokens", "max-num-batched-tokens", settings.max_num_batched_tokens),
    ):
        if amount > most * groups:
            maximum = f"{most:,}" + (f" on each of {groups} groups" if groups > 1 else "")
            yield Fault(
                f"{amount:,} {noun} are more than the engine takes in a step ({maximum})",
                field=option,
                allowed=f"at most {most * groups:,}, or a larger --{name}",
            )
        elif noun == "tokens" and prefill > most:
            yield Fault(
                f"a prompt's {prefill:,} tokens are more than its attention group takes in a step ({most:,})",
                field=option,
                allowed=f"at most {most:,}, or a larger --{name}",
            )
