"""Step times of one layout, tabulated once over tokens and rows, so that closed form and simulator can look steps up, and how
the layout batches requests into these steps.

The tables use the same operations as `step`, which times one batch exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.catalog.shelf import only
from sizing.model import architecture, memory, operations
from sizing.model.architecture import Shard
from sizing.model.attention import Numeric
from sizing.model.extras import drafts
from sizing.model.operations import Operation
from sizing.replica.kernels import Kernels
from sizing.replica.step import (
    NEXT_TO_NONE,
    corrected_s,
    extras_of_prompts,
    extras_of_tokens,
    front_end_s,
    gpu_seconds,
    launch_s,
    launched_s,
    of_rank,
    pipelined_s,
    with_host_s,
)
from sizing.specs.bands import UNCORRECTED, Correction
from sizing.specs.engine_time import FrontEnd, HostTime
from sizing.specs.frozen import Frozen
from sizing.specs.gpu import Assumptions
from sizing.specs.units import GIGA, MICRO, MILLI

GRID_POINTS_PER_OCTAVE = 8
GRID_OCTAVES = 17  # 1 .. 131,072 tokens in a step
Array = NDArray[np.float64]


class Batching(Frozen):
    """How a layout batches: lengths, prefill chunk, pipeline depth, attention-data ranks, the scheduler's step order.

    `isl` counts the tokens of a prompt to be prefilled, without cached ones. `chunk_tokens` is the prompt's share of a
    step's token budget. A decode step gives each sequence `tokens_per_step` tokens on average, several with speculative
    decoding. With `prefill_only`, a step with prefill carries no decodes (SGLang, vLLM V0). `prefilled` prompts arrive with
    their cache and first token, as in the decode pool of a disaggregated deployment.
    At most `slots` requests run at once; others wait. With `ahead`, a step is made up while the one before it runs, so an
    arrival joins one step later. For stacked layouts lengths, slots, chunks, `pp` and `dp` are columns. Either all of them
    decode, or none.
    """

    isl: Numeric
    osl: Numeric
    chunk_tokens: Numeric
    budget_tokens: float
    prefill_only: bool
    pp: Numeric = 1
    dp: Numeric = 1
    tokens_per_step: float = 1.0
    prefilled: bool = False
    even_stages: Numeric | None = None
    slots: Numeric = np.inf
    ahead: bool = False

    @property
    def stages(self) -> Numeric:
        """Number of even stages with the same speed as the pipeline, whose largest stage slows the others."""
        return self.pp if self.even_stages is None else self.even_stages

    @property
    def decodes(self) -> bool:
        """Whether requests have a second token."""
        return self.osl > 1 if isinstance(self.osl, int) else bool(np.all(self.osl > 1))

    @property
    def decode_steps(self) -> Numeric:
        """Decode steps of a request: one per token after the first, fewer if a step gives several tokens."""
        return (self.osl - 1) / self.tokens_per_step

    @property
    def chunks(self) -> Numeric:
        """Steps that the prefill of one prompt takes."""
        return 0.0 if self.prefilled else self.isl / self.chunk_tokens

    @property
    def passes(self) -> Numeric:
        """Whole passes that one prompt's prefill lasts; its chunks follow each other through the pipeline."""
        return 0.0 if self.prefilled else 1 + (self.chunks - 1) / self.stages

    @property
    def on_rank(self) -> Numeric:
        """Prompts that fit one step's budget on a rank; 1 if a prompt takes several steps."""
        return np.maximum(1.0, self.budget_tokens / self.isl)

    @property
    def flat(self) -> bool:
        """Whether steps with prompts differ in kind from decode steps: prefill-only steps, or prompts on several ranks."""
        return self.prefill_only or bool(np.any(np.asarray(self.dp) > 1))

    @property
    def most_together(self) -> Numeric:
        """Most prompts that share one step, over all attention-data ranks."""
        return self.dp * self.on_rank

    @property
    def sharing(self) -> Numeric:
        """How far prompts share steps: 0 where a step holds one prompt, 1 where it holds two or more."""
        return np.minimum(1.0, self.most_together - 1)

    @property
    def later_steps(self) -> Numeric:
        """Decode steps of a request after its first, whose prompts came while it decoded: one fewer with `ahead`."""
        return np.maximum(self.decode_steps - 1 - self.ahead, 0.0)


class Curves(Frozen):
    """Step time of one layout, tabulated: `body_s` over tokens and `head_s` over rows on `grid`, and attention in parts.

    All tables are of the fullest attention-data rank, except `shared_s`: work that all ranks do together, over the tokens
    of all ranks. It is None for a replica with one rank, whose `body_s` has everything. `decode_s` is decode attention over
    sequences at the stated context. `prompt_attention_s` is prefill attention of one whole prompt of the stated length;
    each step takes `prompt_floor_s` of it, regardless of how many prompts share the step. `front_end_s` is a prompt's time
    outside the steps; during `serial_s` of it, requests are handled one after another.

    A decoding sequence has `verified` tokens in a step, which are all rows. A draft adds `again_s` over sequences on the
    same grid. GPUs with parts of one cache add `joined_s`, as if all ranks had as many sequences. `largest_stage` and
    `last_stage` are the shares of the layers in these pipeline stages, 0 without a pipeline.

    Between grid points (spacing 9 %) seconds are interpolated linearly, within 0.1 % of the exact step, and within 0.5 %
    beside a jump of a measured kernel. For stacked layouts, tables have one row per layout, and attention is a column.
    """

    grid: Array
    body_s: Array
    head_s: Array
    decode_s: Array
    prompt_attention_s: Numeric
    prompt_floor_s: Numeric
    host: HostTime
    front_end_s: Numeric = 0.0
    serial_s: float = 0.0
    launch_s: Numeric = 0.0
    captured_tokens: int = 0
    verified: int = 1
    again_s: Array | None = None
    joined_s: Array | None = None
    shared_s: Array | None = None
    largest_stage: Numeric = 0.0
    last_stage: Numeric = 0.0
    correction: Correction = UNCORRECTED


def token_grid() -> Array:
    """Grid of tokens in a step: eight points per octave from 1 to 131,072."""
    return np.exp2(np.arange(GRID_OCTAVES * GRID_POINTS_PER_OCTAVE + 1) / GRID_POINTS_PER_OCTAVE)


class StepLengths(NamedTuple):
    """Sequences at a mean context, and prompts prefilled `chunk_tokens` at a time; their `cached_tokens` need no prefill."""

    context_tokens: float
    prompt_tokens: float
    chunk_tokens: float
    cached_tokens: float = 0.0


def with_lengths(tables: Curves, kernels: Kernels, lengths: Sequence[StepLengths]) -> list[Curves]:
    """The step time at each of several lengths, from the result of `without_lengths`.

    The curves are those of one stage; `at_depth` adds what the stages of a pipeline send each other.
    """
    everyone = tables.grid * kernels.shard.layout.dp
    contexts = np.array([[each.context_tokens] for each in lengths], dtype=float)
    decode_s = np.zeros((len(lengths), everyone.size)) + decode_attention_s(kernels, everyone, contexts)
    image_s, front = encoder_s(kernels), front_end(kernels)
    return [
        replace(
            tables,
            decode_s=of_context,
            prompt_attention_s=prompt_s + image_s,
            front_end_s=float(front_end_s(front, each.prompt_tokens)) * kernels.correction.prefill,
        )
        for each, of_context, prompt_s in zip(lengths, decode_s, _prompts_s(kernels, lengths), strict=True)
    ]


def without_lengths(kernels: Kernels) -> Curves:
    """Tabulate what does not depend on request lengths: the step time without attention, and no front-end time per prompt."""
    shard, settings = kernels.shard, kernels.settings
    grid = token_grid()
    everyone = grid * shard.layout.dp
    body_s, shared_s = body_tables(kernels, grid, operations.split_body)
    return Curves(
        grid=grid,
        body_s=body_s,
        head_s=np.asarray(gpu_seconds(operations.head(shard, everyone), kernels)),
        decode_s=np.zeros_like(grid),
        prompt_attention_s=0.0,
        prompt_floor_s=prefill_floor_s(kernels),
        host=kernels.host,
        serial_s=MILLI * settings.front_end.serial_ms * kernels.correction.prefill,
        launch_s=launch_s(kernels),
        captured_tokens=settings.captured_prefill_tokens,
        verified=shard.extras.verified,
        again_s=again_s(kernels, everyone),
        joined_s=joined_s(kernels, everyone),
        shared_s=shared_s,
        correction=kernels.correction,
    )


def body_tables(
    kernels: Kernels, tokens: Array, build: Callable[[Shard, Array], tuple[Operation, ...]]
) -> tuple[Array, Array | None]:
    """Seconds of the body made by `build`, with extras and the draft's first pass: (each rank's own work, shared work).

    Own work is over the tokens of a rank, shared work over the tokens of all ranks. With one rank, all work is in the first
    table and the second is None.
    """
    shard, dp = kernels.shard, kernels.shard.layout.dp

    def seconds(at: Array, of_all: bool | None) -> Array:
        found = (o for o in build(shard, at) if of_all in (None, o.of_all))
        return np.asarray(gpu_seconds(found, kernels)) + _beside_s(kernels, at, of_all)

    return (seconds(tokens, None), None) if dp == 1 else (seconds(tokens * dp, False), seconds(tokens, True))


def _beside_s(kernels: Kernels, tokens: Array, of_all: bool | None) -> Array:
    """Seconds that extras and the draft's first pass add to a step; `of_all` selects shared or own work, None both."""
    shard = kernels.shard
    own = (o for o in extras_of_tokens(shard, tokens) if of_all in (None, o.of_all))
    total: Array = np.zeros_like(tokens) + gpu_seconds(own, kernels)
    if shard.extras.draft is not None:
        found = drafts.body(shard.extras.draft, kernels.draft.shard, tokens)
        total = total + gpu_seconds((o for o in found if of_all in (None, o.of_all)), kernels.draft)
    return total


def again_s(kernels: Kernels, sequences: Array) -> Array | None:
    """Seconds of the draft's passes after the first, over decoding sequences; None without a draft."""
    draft = kernels.shard.extras.draft
    if draft is None:
        return None
    by = kernels.draft
    return np.zeros_like(sequences) + gpu_seconds(drafts.further(draft, by.shard, sequences), by)


def joined_s(kernels: Kernels, sequences: Array) -> Array | None:
    """Seconds in which GPUs with parts of one cache exchange partial results of sequences; None where caches are whole."""
    if kernels.shard.layout.cache_parts == 1:
        return None
    return np.zeros_like(sequences) + gpu_seconds(operations.parts_joined(kernels.shard, sequences), kernels)


def encoder_s(kernels: Kernels) -> float:
    """Seconds of the image encoder for the images of one prompt."""
    return float(np.asarray(gpu_seconds(extras_of_prompts(kernels.shard, 1.0), kernels)))


def front_end(kernels: Kernels) -> FrontEnd:
    """A request's times outside the steps, including the restore of cached tokens from host memory.

    Each GPU restores its own share over its own PCIe link while the steps of other requests go on.
    """
    shard, settings, cached = kernels.shard, kernels.settings, kernels.shard.extras.cached
    if not cached.restored:
        return settings.front_end
    pcie = only(Assumptions).link_efficiency * kernels.gpu.datasheet.node.pcie_gb_per_s_per_direction * GIGA
    per_token, _ = max(memory.rate_bytes(shard, stage) for stage in shard.stages)
    restore_us = cached.brought * per_token / (cached.restore_bytes_per_s or pcie) / MICRO
    more = settings.front_end.per_prompt_token_us + restore_us
    return settings.front_end.model_copy(update={"per_prompt_token_us": more})


def at_depth(split: Curves, kernels: Kernels) -> Curves:
    """The curves of a layout, from those of its split at one stage: adds a pipeline's sends and uneven stages."""
    shard = kernels.shard
    if shard.layout.pp == 1:
        return split
    sends_s = gpu_seconds(operations.pipeline_sends(shard, split.grid * shard.layout.dp), kernels)
    largest, last = architecture.stage_shares(shard.model, shard.layout.pp, shard.settings.pp_remainder)
    return replace(split, body_s=split.body_s + sends_s, largest_stage=largest, last_stage=last)


def decode_attention_s(kernels: Kernels, sequences: Numeric, context_tokens: Numeric) -> Numeric:
    """Seconds of a step's decode attention, including all passes of the draft."""
    taken_s = gpu_seconds(operations.decode_attention(kernels.shard, sequences, context_tokens), kernels)
    draft = kernels.shard.extras.draft
    if draft is None:
        return taken_s
    by = kernels.draft
    return taken_s + gpu_seconds(drafts.decode_attention(draft, by.shard, sequences, context_tokens), by)


def prefill_attention_s(kernels: Kernels, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric) -> Numeric:
    """Seconds of prefill attention, including the draft's."""
    taken_s = gpu_seconds(operations.prefill_attention(kernels.shard, sequences, tokens, prior_tokens), kernels)
    draft = kernels.shard.extras.draft
    if draft is None:
        return taken_s
    by = kernels.draft
    return taken_s + gpu_seconds(drafts.prefill_attention(draft, by.shard, sequences, tokens, prior_tokens), by)


def prefill_floor_s(kernels: Kernels) -> float:
    """Seconds that the kernels of prefill attention take at least. All prompts of a step share them."""
    ranks = float(kernels.shard.layout.dp)
    return float(np.asarray(prefill_attention_s(kernels, ranks, np.array([NEXT_TO_NONE]), np.array([0.0]))).flat[0])


def _prompts_s(kernels: Kernels, lengths: Sequence[StepLengths]) -> list[float]:
    """Attention seconds of one prompt of each length without its cached tokens, summed over its chunks, on its rank."""
    starts = [np.arange(each.cached_tokens, each.prompt_tokens, each.chunk_tokens) for each in lengths]
    sizes = [np.minimum(each.chunk_tokens, each.prompt_tokens - at) for each, at in zip(lengths, starts, strict=True)]
    ranks, chunks = 1.0 * kernels.shard.layout.dp, np.concatenate(sizes)
    seconds = np.broadcast_to(prefill_attention_s(kernels, ranks, chunks, np.concatenate(starts)), chunks.shape)
    return [float(np.sum(each)) for each in np.split(seconds, np.cumsum([len(each) for each in starts])[:-1])]


def lookup(grid: Array, seconds: Array, at: Numeric) -> Numeric:
    """Seconds at any number of tokens: linear between grid points, constant below the grid, extended linearly above it.

    For stacked layouts `seconds` and `at` have one row per layout, and the grid is that of `token_grid`.
    """
    if seconds.ndim > 1:
        return _placed(grid, at, len(seconds)).seconds(seconds)
    slope = (seconds[-1] - seconds[-2]) / (grid[-1] - grid[-2])
    extended: Numeric = np.interp(at, grid, seconds) + slope * np.maximum(0.0, np.asarray(at) - grid[-1])
    return extended


class _Places(NamedTuple):
    """Numbers of tokens in stacked tables: the place of each in its row's interval, the interval's length, and what is beyond its start."""

    place: NDArray[np.intp]
    length: Array
    beyond: Array

    def seconds(self, table: Array) -> Array:
        # Slopes of the wanted intervals alone: tables are longer than most rows of loads.
        least = table.take(self.place)
        found: Array = (table.take(self.place + 1) - least) / self.length * self.beyond + least
        return found


def _placed(grid: Array, at: Numeric, rows: int) -> _Places:
    within = np.maximum(at, grid[0])
    place = np.minimum(np.log2(within) * GRID_POINTS_PER_OCTAVE, grid.size - 2).astype(np.intp)
    start = grid.take(place)
    return _Places(place + np.arange(rows)[:, np.newaxis] * grid.size, grid.take(place + 1) - start, within - start)


def _lookups(curves: Curves, at: Numeric, *tables: Array | None) -> list[Numeric]:
    """`lookup` in several tables at the same numbers of tokens; 0 for a table that a layout does not have."""
    if curves.body_s.ndim == 1:
        return [_table_s(curves, table, at) for table in tables]
    places = _placed(curves.grid, at, len(curves.body_s))
    return [0.0 if table is None else places.seconds(table) for table in tables]


def decode_step_s(curves: Curves, flow: Batching, decoding: Numeric) -> Numeric:
    """Seconds between two tokens of a sequence without prefill: one pass of a microbatch of b/pp sequences.

    In a full pipeline a pass lasts pp times its slowest stage; the whole head is on the last stage. The host schedules each
    microbatch.
    """
    # Loads that take as long as one.
    lone = np.argmin(np.all(decoding <= 1, axis=0)) - 1 if np.ndim(decoding) > 1 else 0
    if lone > 0:
        taken_s = np.asarray(decode_step_s(curves, flow, np.asarray(decoding)[:, lone:]))
        return np.concatenate((np.repeat(taken_s[:, :1], lone, axis=1), taken_s), axis=1)
    micro = np.maximum(np.asarray(decoding, dtype=float) / flow.pp, 1.0)
    own = of_rank(micro, flow.dp)
    microbatches = np.clip(decoding, 1.0, flow.pp)
    body_s, head_s, attention_s, joined_s, again_s = _of_decoding(curves, own)
    gpu_s = pipelined_s(
        body_s + _table_s(curves, curves.shared_s, micro * curves.verified) + attention_s + joined_s,
        head_s,
        microbatches,
        curves.largest_stage,
        curves.last_stage,
    )
    gpu_s = gpu_s + again_s * microbatches
    return with_host_s(gpu_s, curves.host, own, microbatches) * curves.correction.decode


def _of_decoding(curves: Curves, own: Numeric) -> list[Numeric]:
    """Seconds of body, head, decode attention, joining and a draft's further passes for `own` decoding sequences of a rank."""
    of_tokens, of_sequences = (curves.body_s, curves.head_s), (curves.decode_s, curves.joined_s, curves.again_s)
    if curves.verified == 1:
        return _lookups(curves, own, *of_tokens, *of_sequences)
    return [*_lookups(curves, own * curves.verified, *of_tokens), *_lookups(curves, own, *of_sequences)]


def _table_s(curves: Curves, table: Array | None, at: Numeric) -> Numeric:
    """Seconds from a table over tokens or sequences; 0 where a layout has no such table."""
    return 0.0 if table is None else lookup(curves.grid, table, at)


def prefill_step_s(curves: Curves, flow: Batching, decoding: Numeric, together: Numeric = 1.0) -> Numeric:
    """Seconds of a step with prefill and `decoding` sequences (0: prefill only).

    `together` prompts share the step, spread over the attention-data ranks; the fullest rank sets the time. If a prompt
    takes several chunks, the step has one chunk of each. If prompts arrive already prefilled, this is a decode step.
    """
    return prefill_steps(curves, flow, decoding)(together)


def prefill_steps(curves: Curves, flow: Batching, decoding: Numeric) -> Callable[[Numeric], Numeric]:
    """`prefill_step_s` as a function of `together`. What only the decoding sequences take is looked up once."""
    if flow.prefilled:
        alone_s = decode_step_s(curves, flow, decoding)
        return lambda together: alone_s
    micro = np.asarray(decoding, dtype=float) / flow.pp
    # Decode attention runs only in steps with a decoding sequence; below one sequence on average, not in every step.
    own, least = of_rank(micro, flow.dp), np.minimum(micro, 1.0)
    tables = [table for table in (curves.again_s, curves.joined_s) if table is not None]
    attention_s, *further = _lookups(curves, np.maximum(own, 1.0), curves.decode_s, *tables)
    attention_s, further_s = attention_s * least, [more_s * least for more_s in further]
    verified, alike = own * curves.verified, curves.correction.decode == curves.correction.prefill
    decoding_s = 0.0 if alike else _decoding_s(curves, flow, micro)

    def seconds(together: Numeric) -> Numeric:
        prompts = of_rank(together, flow.dp)
        tokens = verified + flow.chunk_tokens * prompts
        gpu_s = (
            lookup(curves.grid, curves.body_s, tokens)
            + lookup(curves.grid, curves.head_s, np.maximum(verified + prompts / flow.chunks, 1.0))
            + attention_s
            + (curves.prompt_attention_s / flow.chunks - curves.prompt_floor_s) * prompts
            + curves.prompt_floor_s * np.minimum(prompts, 1.0)
            + _table_s(curves, curves.shared_s, micro * curves.verified + flow.chunk_tokens * together)
        )
        for more_s in further_s:
            gpu_s = gpu_s + more_s
        busy_s = launched_s(gpu_s, curves.launch_s, curves.captured_tokens, tokens)
        step_s = with_host_s(busy_s, curves.host, own + prompts)
        return corrected_s(curves.correction, step_s, np.minimum(step_s, decoding_s))

    return seconds


def _decoding_s(curves: Curves, flow: Batching, micro: Numeric) -> Numeric:
    """Seconds that the `micro` decoding sequences of a step with prefill would take alone."""
    own, least = np.maximum(of_rank(micro, flow.dp), 1.0), np.minimum(micro, 1.0)
    body_s, head_s, attention_s, joined_s, again_s = _of_decoding(curves, own)
    shared_s = _table_s(curves, curves.shared_s, np.maximum(micro, 1.0) * curves.verified)
    gpu_s = body_s + head_s + shared_s + attention_s + again_s + joined_s
    return with_host_s(gpu_s, curves.host, own) * least


def solo_ttft_s(curves: Curves, flow: Batching) -> Numeric:
    """Seconds to the first token of a request that runs alone."""
    return curves.front_end_s + flow.passes * prefill_step_s(curves, flow, 0.0)


def solo_itl_s(curves: Curves, flow: Batching) -> Numeric:
    """Seconds between tokens of a request that runs alone; 0 if there is no second token."""
    return decode_step_s(curves, flow, 1.0) / flow.tokens_per_step if flow.decodes else 0.0
