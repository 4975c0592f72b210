"""`llmsize step`: one step by operation; or a step of each of two pools, and the transfer of a prompt's KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.answers.deployment import Resolved, batch_faults, layout_faults, length_faults
from sizing.formats.view import (
    Assumption,
    Document,
    Facts,
    Line,
    Quantity,
    Rows,
    Section,
    Table,
    filled,
    in_words,
    rows_of,
)
from sizing.formats.words import milliseconds, number
from sizing.replica import step as step_model
from sizing.replica.step import Batch, TimedOperation
from sizing.report.parts import assumptions, pools, quantities
from sizing.report.parts.pools import TransferSummary, transfer_words
from sizing.report.parts.question import LayoutInputs, inputs_of_layout, of_service, replica_lines
from sizing.report.parts.screen import assumption_lines, next_line
from sizing.report.parts.sentences import line
from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.units import GIGA, MEGA, MILLI

if TYPE_CHECKING:
    from sizing.answers.pools import PairOfLayouts  # loaded where pools are asked for


OF_POOLS = ("model", "engine", "engine_title", "engine_version", "batch", "optimisations")  # inputs of both pools
MOST_SHOWN = 10  # operations on a screen, the longest first


class StepOperation(NamedTuple):
    """One operation of a step: its executions, and their total work and seconds."""

    name: str
    count: float  # type: ignore[assignment]  # the tuple's own `count` gives way
    flops: float
    bytes: float
    message_bytes: float
    seconds: float
    share: float
    bound: str


class StepLoad(NamedTuple):
    """The work of a step: `decode` sequences at `context` tokens, and `prefill` new prompt tokens after `prior` cached ones."""

    decode: int = 0
    context: int = 0
    prefill: int = 0
    prior: int = 0


class StepInputs(NamedTuple):
    """The resolved inputs of a step; `host` says whether the time of the host is `overlapped` or `added`."""

    of_layout: LayoutInputs
    batch: StepLoad
    host: str


class StepReport(NamedTuple):
    """The record of `llmsize step`."""

    inputs: StepInputs
    total_s: float
    gpu_s: float
    launch_s: float
    host_s: float
    mbu: float
    mfu: float
    operations: tuple[StepOperation, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.step/1"


class StepPools(NamedTuple):
    """The record of `llmsize step --disaggregate`: the step of each pool, null if the pool has no work.

    `kv_transfer_ms` is the transfer time of the KV cache of the whole prompt, including tokens cached before.
    """

    inputs: dict[str, Any]
    prefill: StepReport | None
    decode: StepReport | None
    kv_transfer_ms: float | None
    kv_transfer: TransferSummary | None
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.step_pools/1"


def record(resolved: Resolved, work: StepLoad) -> StepReport:
    """Time one step of a layout.

    Raises InputError if the layout is refused, a sequence is longer than the engine's maximum, or the batch is larger than one
    step allows.
    """
    faults = [*layout_faults(resolved)]
    faults += length_faults(resolved, (("--context", work.context), ("--prefill, --prior", work.prefill + work.prior)))
    faults += batch_faults(resolved, work.decode, work.prefill, ("--decode", "--decode, --prefill"))
    raise_any(faults)
    kernels, prompts = resolved.kernels(), 1.0 if work.prefill else 0.0
    batch = Batch(
        decode_sequences=float(work.decode),
        decode_context_tokens=float(work.context),
        prefill_sequences=prompts,
        prefill_tokens=float(work.prefill),
        prefill_prior_tokens=float(work.prior),
        finishing=prompts,
    )
    timed = step_model.step(kernels, batch)
    host = "overlapped" if kernels.settings.host.overlapped else "added"
    operations = step_model.batch_operations(kernels.shard, batch)
    return filled(
        StepReport,
        timed,
        inputs=StepInputs(inputs_of_layout(resolved), work, host),
        operations=tuple(_operation(o, timed.gpu_s) for o in timed.operations),
        assumptions=(
            *assumptions.of_model(resolved.question, resolved.notes),
            *assumptions.of_steps(resolved.question, resolved.replica, kernels, operations),
        ),
    )


def _operation(timed: TimedOperation, total_s: float) -> StepOperation:
    o = timed.operation
    flops, moved, sent = (float(each) * o.count for each in (o.flops, o.bytes, o.message_bytes))
    return StepOperation(o.name, o.count, flops, moved, sent, timed.seconds, timed.seconds / total_s, timed.bound)


def record_of_pools(pair: PairOfLayouts, work: StepLoad) -> StepPools:
    """Time a step of each pool that has work: a prompt in the prefill pool, sequences in the decode pool.

    Raises InputError with every reason why a step can't run.
    """
    faults: list[Fault] = []

    def timed(pool: Resolved, part: StepLoad) -> StepReport | None:
        if not part.decode and not part.prefill:
            return None
        try:
            return record(pool, part)
        except InputError as error:
            faults.extend(error.faults)
            return None

    prefill = timed(pair.prefill, StepLoad(prefill=work.prefill, prior=work.prior))
    decode = timed(pair.decode, StepLoad(decode=work.decode, context=work.context))
    raise_any(faults)
    prompt, shared = work.prefill + work.prior, of_service(pair.decode.question.service) | {"batch": work._asdict()}
    rests_on = [entry for step in (prefill, decode) if step is not None for entry in step.assumptions]
    return StepPools(
        inputs={name: shared[name] for name in OF_POOLS},
        prefill=prefill,
        decode=decode,
        kv_transfer_ms=float(pair.transfer.seconds(prompt)) / MILLI if work.prefill else None,
        kv_transfer=pools.transfer_figures(pair.transfer, prompt) if work.prefill else None,
        assumptions=tuple(dict.fromkeys([*rests_on, *pools.assumptions(pair.facts)])),
    )


def rows(record: StepReport) -> Rows:
    """A row for each operation."""
    return rows_of(record.operations, StepOperation._fields)


def rows_of_pools(record: StepPools) -> Rows:
    """A row for each operation of both pools, and one for the transfer of the cache between them."""
    found: list[tuple[Any, ...]] = []
    if record.prefill is not None:
        found += [("prefill", *row) for row in rows(record.prefill).rows]
    if record.kv_transfer is not None and record.kv_transfer_ms is not None:
        sent, seconds = record.kv_transfer.gb_per_gpu * GIGA, record.kv_transfer_ms * MILLI
        found.append(("", "kv_transfer", 1, None, None, sent, seconds, None, record.kv_transfer.link))
    if record.decode is not None:
        found += [("decode", *row) for row in rows(record.decode).rows]
    return Rows(("pool", *StepOperation._fields), found)


OPERATIONS = (
    in_words("name", "operation"),
    Quantity("count", "times"),
    quantities.US_IN_ALL,
    quantities.SHARE,
    Quantity("flops", "GFLOP", lambda flops: number(flops / GIGA)),
    Quantity("bytes", "MB", lambda size: number(size / MEGA)),
    Quantity("message_bytes", "MB sent", lambda size: number(size / MEGA) if size else "", nothing="", shown="always"),
    in_words("bound", "bound"),
)


def sections(record: StepReport) -> Iterator[Section]:
    """Yield a step's time, its labels, and the operations that take longest."""
    yield from _step(record)
    yield Facts((*assumption_lines(record.assumptions), next_line()))


def sections_of_pools(record: StepPools) -> Iterator[Section]:
    """Yield both steps, each under the name of its pool, and the transfer of a prompt's KV cache."""
    if record.prefill is not None:
        yield from _step(record.prefill, "Prefill pool: ")
    if record.kv_transfer is not None:
        way = f"{milliseconds(record.kv_transfer_ms)} a prompt: {transfer_words(record.kv_transfer)}"
        yield Facts((Line(way, "Transfer"),))
    if record.decode is not None:
        yield from _step(record.decode, "Decode pool: ")
    yield Facts((*assumption_lines(record.assumptions), next_line()))


def _step(record: StepReport, pool: str = "") -> Iterator[Section]:
    i, batch, host = record.inputs
    own = {"gpu_ms": record.gpu_s / MILLI, "launch_ms": record.launch_s / MILLI if record.launch_s else None}
    time = line("time of a step", record, host_ms=record.host_s / MILLI, host=host, **own)
    work = line("batch of a step", batch, groups=i.sizes.dp if i.sizes.dp > 1 else None)
    yield Facts(
        (
            time,
            work,
            *replica_lines(i, i.layout),
        ),
        f"{pool or 'One step: '}{number(record.total_s / MILLI, 4)} ms",
    )
    most = MOST_SHOWN // 2 if pool else MOST_SHOWN
    longest = sorted(record.operations, key=lambda operation: -operation.seconds)
    yield Table(OPERATIONS, longest, "/operations").cut(most, "shorter operation", "--verbose")


document = partial(Document, sections=sections, rows=rows)
document_of_pools = partial(Document, sections=sections_of_pools, rows=rows_of_pools)
