"""The document of `llmsize step`."""

from __future__ import annotations

from sizing import step as step_model
from sizing.deployment import Resolved
from sizing.errors import Fault, InputError
from sizing.report import assumptions
from sizing.report.deployed import candidate_of, inputs
from sizing.report.documents import StepOperation, StepReport
from sizing.step import Batch, TimedOperation


def build(resolved: Resolved, *, decode: int, context: int, prefill: int, prior: int) -> StepReport:
    """Time one step: `decode` sequences at `context` tokens, and `prefill` new tokens of a prompt with `prior` cached.

    Raises InputError where the engine refuses the layout or lengths exceed the model's maximum.
    """
    _check(resolved, context, prefill + prior)
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
        inputs={**inputs(resolved), "batch": stated, "host": host},
        total_s=timed.total_s,
        gpu_s=timed.gpu_s,
        host_s=timed.host_s,
        mbu=timed.mbu,
        mfu=timed.mfu,
        operations=tuple(_operation(o, timed.gpu_s) for o in timed.operations),
        assumptions=tuple(assumptions.of_time(resolved.request, candidate_of(resolved), kernels)),
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


def _check(resolved: Resolved, context: int, prompt: int) -> None:
    faults = []
    if resolved.refused is not None:
        faults.append(Fault(f"the engine refuses {resolved.layout}: {resolved.refused}", field="--tp"))
    longest = resolved.request.model.max_position
    for option, tokens in (("--context", context), ("--prefill", prompt)):
        if tokens > longest:
            faults.append(
                Fault(
                    f"{tokens:,} tokens exceed the model's {longest:,} positions",
                    field=option,
                    allowed=f"at most {longest:,}",
                )
            )
    if faults:
        raise InputError(faults)
