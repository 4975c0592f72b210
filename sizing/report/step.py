"""The document of `llmsize step`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sizing import step as step_model
from sizing.candidates import refusals
from sizing.deployment import Resolved
from sizing.errors import Fault, InputError
from sizing.report.documents_step import StepOperation, StepReport
from sizing.report.parts import assumptions
from sizing.report.parts.question import candidate_of, inputs_of_layout
from sizing.step import Batch, TimedOperation

OPTION_OF_REASON = {"sparsity": "--sparsity", "engine": "--engine"}  # the others are the layout's


def build(resolved: Resolved, *, decode: int, context: int, prefill: int, prior: int) -> StepReport:
    """Time one step: `decode` sequences at `context` tokens, and `prefill` new tokens of a prompt with `prior` cached.

    Raises InputError where the layout is refused, where a sequence is longer than the engine takes, or the batch is more
    than it runs in one step.
    """
    faults = [*layout_faults(resolved)]
    faults += length_faults(resolved, (("--context", context), ("--prefill, --prior", prefill + prior)))
    faults += batch_faults(resolved, decode, prefill, ("--decode", "--decode, --prefill"))
    if faults:
        raise InputError(faults)
    kernels = resolved.kernels()
    batch = Batch(
        decode_sequences=float(decode),
        decode_context_tokens=float(context),
        prefill_sequences=1.0 if prefill else 0.0,
        prefill_tokens=float(prefill),
        prefill_prior_tokens=float(prior),
        finishing=1.0 if prefill else 0.0,
    )
    timed = step_model.step(resolved.request.model, resolved.layout, kernels, batch)
    host = "overlapped" if kernels.settings.host.overlapped else "added"
    stated = {"decode": decode, "context": context, "prefill": prefill, "prior": prior}
    return StepReport(
        inputs={**inputs_of_layout(resolved), "batch": stated, "host": host},
        total_s=timed.total_s,
        gpu_s=timed.gpu_s,
        launch_s=timed.launch_s,
        host_s=timed.host_s,
        mbu=timed.mbu,
        mfu=timed.mfu,
        operations=tuple(_operation(o, timed.gpu_s) for o in timed.operations),
        assumptions=(
            *assumptions.of_model(resolved.request, resolved.notes),
            *assumptions.of_steps(resolved.request, candidate_of(resolved), kernels),
        ),
    )


def _operation(timed: TimedOperation, total_s: float) -> StepOperation:
    o = timed.operation
    return StepOperation(
        name=o.name,
        count=o.count,
        flops=float(o.flops) * o.count,
        bytes=float(o.bytes) * o.count,
        message_bytes=float(o.message_bytes) * o.count,
        seconds=timed.seconds,
        share=timed.seconds / total_s,
        bound=timed.bound,
    )


def layout_faults(resolved: Resolved) -> Iterator[Fault]:
    """Yield why hardware or engine won't run the layout."""
    request, gpu, plan = resolved.request, resolved.option.gpu, resolved.plan
    for reason, detail in refusals(request, gpu, resolved.layout, resolved.settings, plan):
        if reason in OPTION_OF_REASON:
            yield Fault(detail, field=OPTION_OF_REASON[reason])
        else:
            yield Fault(f"{resolved.layout} is refused: {detail}", field="--tp, --pp, --ep, --dp, --cp, --dcp")


def length_faults(resolved: Resolved, lengths: Iterable[tuple[str, int]]) -> Iterator[Fault]:
    """Yield the lengths in tokens, each with its option, that are longer than the engine takes."""
    longest, model = resolved.request.max_model_len, resolved.request.model
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
    verified = resolved.request.extras.verified
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
