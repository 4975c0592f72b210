"""The simulated replicas of a deployment, each with its clock, rules, cache pool and batch.

A clock has a model's step times as plain numbers, fast enough for millions of look-ups.

All times come from the operations of `sizing.model.operations`, timed by the kernels. Layers and head are tables over
tokens and rows. Decode attention is a table over sequences and piecewise linear in their contexts. Prefill attention is
interpolated over length and share of new tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.engine.batch import DecodeBatch, KvCache, Piece, StepSeries
from sizing.engine.requests import Requests
from sizing.engine.rules import SchedulerRules, of_engine
from sizing.engine.scheduler import Scheduler
from sizing.model import architecture, operations
from sizing.model.architecture import Shard
from sizing.model.attention import FALLS
from sizing.model.extras import NOTHING
from sizing.model.memory import MemoryUse, block_tokens, growing_bytes, lost_bytes, sequence_bytes
from sizing.replica.curves import (
    again_s,
    body_tables,
    decode_attention_s,
    encoder_s,
    front_end,
    joined_s,
    lookup,
    prefill_attention_s,
    prefill_floor_s,
    token_grid,
)
from sizing.replica.kernels import Kernels, corners
from sizing.replica.step import MOST_TAKEN, corrected_s, gpu_seconds, launch_s
from sizing.replica.timing import Timed
from sizing.specs.bands import UNCORRECTED, Correction
from sizing.specs.engine import EngineSettings
from sizing.specs.engine_time import FrontEnd
from sizing.specs.frozen import Frozen
from sizing.specs.model import Model
from sizing.specs.units import GIB, MICRO, MILLI

if TYPE_CHECKING:
    from sizing.engine.transfer import Transfer

LENGTH_POINTS_PER_OCTAVE = 4
SHARE_POINTS_PER_OCTAVE = 2
NO_TABLE = [0.0, 0.0]
SMALLEST_SHARE_OCTAVES = 14  # a chunk of 1/16,384 of the tokens that it sees; smaller chunks cost as much


class Prefill(Frozen):
    """Prefill attention of one prompt's chunk: log seconds over log2 of tokens seen and log2 of the share of new tokens.

    `floor_s` is the least time of its kernels; all prompts of a step share it.
    """

    floor_s: float
    log_s: list[list[float]]
    octaves: int

    def seconds(self, new: float, prior: float) -> float:
        """Seconds beyond the floor for `new` tokens after `prior` cached ones; bilinear in logs of length and share."""
        seen = new + prior
        x = min(math.log2(max(seen, 1.0)), self.octaves) * LENGTH_POINTS_PER_OCTAVE
        y = min(math.log2(seen / new), SMALLEST_SHARE_OCTAVES) * SHARE_POINTS_PER_OCTAVE if prior > 0 else 0.0
        i, j = min(int(x), len(self.log_s) - 2), min(int(y), len(self.log_s[0]) - 2)
        u, v = x - i, y - j
        row, next_row = self.log_s[i], self.log_s[i + 1]
        near = row[j] * (1 - v) + row[j + 1] * v if v else row[j]
        far = next_row[j] * (1 - v) + next_row[j + 1] * v if v else next_row[j]
        return math.exp(near * (1 - u) + far * u)


def prefill_table(kernels: Kernels) -> Prefill:
    """Tabulate prefill attention of one prompt up to the model's maximum length."""
    octaves = math.ceil(math.log2(kernels.shard.model.max_position)) + 1
    lengths = np.exp2(np.arange(octaves * LENGTH_POINTS_PER_OCTAVE + 1) / LENGTH_POINTS_PER_OCTAVE)
    shares = np.exp2(-np.arange(SMALLEST_SHARE_OCTAVES * SHARE_POINTS_PER_OCTAVE + 1) / SHARE_POINTS_PER_OCTAVE)
    seen, share = np.meshgrid(lengths, shares, indexing="ij")
    new = seen * share
    prompts = float(kernels.shard.layout.dp)  # one per rank
    seconds = np.asarray(prefill_attention_s(kernels, prompts, new, seen - new))
    floor_s = prefill_floor_s(kernels)
    return Prefill(floor_s, np.log(np.maximum(seconds - floor_s, 1e-12)).tolist(), octaves)


class Decoding(NamedTuple):
    """Time of a decode step of a number of sequences, without the part that depends on their contexts.

    `own` sequences and `verified` tokens are those of the fullest rank. Layer time grows by `per_token_s` with the mean
    context, and by `in_windows_s` with the part of it within each window.
    """

    own: float
    verified: float
    microbatches: int
    layers_s: float
    per_token_s: float
    in_windows_s: list[float]
    head_s: float
    host_s: float
    added_s: float
    of_prompts_s: tuple[float, float]  # body and head, shared work: replaced by its own in a step with prefill


class StepClock(Frozen):
    """Seconds of steps of one replica. Tables are indexed by whole tokens and rows.

    `decode_s` has one row per number of sequences: seconds of decode attention without context, per token of mean context,
    and per token within each window.

    The `dp` attention-data ranks step together, so the fullest rank sets the time. Tables and slopes are over its tokens
    and sequences, except `shared_s`: the experts' work, over the tokens of all ranks. Decoding sequences are spread evenly.

    With a pipeline, sequences are spread over its microbatches. A prompt delays the other sequences by the largest stage's
    share of its step, while its own first token waits for the whole pass. A decoding sequence has `verified` tokens in a
    step and gets `tokens_per_step` of them. A draft takes `again_s` over sequences, GPUs with parts of one cache take
    `joined_s`, and a prompt's images take `encoder_s` in its first step.
    """

    body_s: list[float]
    head_s: list[float]
    decode_s: list[list[float]]
    prefill: Prefill
    host_step_s: float
    host_sequence_s: float
    overlapped: bool
    launch_s: float
    captured_tokens: int
    front_end: FrontEnd
    pp: int
    verified: int = 1
    tokens_per_step: float = 1.0
    again_s: list[float] = field(default_factory=lambda: NO_TABLE)
    joined_s: list[float] = field(default_factory=lambda: NO_TABLE)
    encoder_s: float = 0.0
    largest_stage: float = 0.0
    last_stage: float = 0.0
    dp: int = 1
    shared_s: list[float] = field(default_factory=lambda: NO_TABLE)
    correction: Correction = UNCORRECTED
    own_step_s: float = 0.0
    own_sequence_s: float = 0.0
    padded_batches: tuple[int, ...] = ()
    sizes: dict[int, Decoding] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def serial(self) -> float:
        """Seconds that the server's thread takes for each request, one after another."""
        return MILLI * self.front_end.serial_ms * self.correction.prefill

    def launching(self, tokens: float) -> float:
        """Seconds in which the host launches a step with so many tokens of prefill on a rank: none where a graph holds them."""
        return self.launch_s * self.correction.prefill if tokens > self.captured_tokens else 0.0

    def outside(self, prompt_tokens: int) -> float:
        """Seconds that a request spends outside the steps, without the server's thread."""
        factor, front_end = self.correction.prefill, self.front_end
        return factor * (MILLI * front_end.per_request_ms + MICRO * front_end.per_prompt_token_us * prompt_tokens)

    def _host(self, gpu_s: float, sequences: float, microbatches: float) -> float:
        host_s = (self.host_step_s + self.host_sequence_s * sequences) * microbatches
        step_s = max(gpu_s, host_s) if self.overlapped else gpu_s + host_s
        return step_s + self._added_s(self._own_s(sequences, microbatches), step_s)

    def _own_s(self, sequences: float, microbatches: float) -> float:
        """Seconds that the user's own runs add to a step; see `own_s`."""
        return (self.own_step_s + self.own_sequence_s * sequences) * microbatches

    def _added_s(self, own_s: float, step_s: float) -> float:
        return max(own_s, -MOST_TAKEN * step_s)

    def _decoding(self, size: int) -> Decoding:
        """Timing of a decode step of `size` sequences, cached by size."""
        found = self.sizes.get(size)
        if found is None:
            micro, microbatches = max(size / self.pp, 1.0), min(size, self.pp)
            own = max(micro / self.dp, 1.0)  # a microbatch has at least one sequence
            verified = own * self.verified
            place = bisect_left(self.padded_batches, own)
            more = self.padded_batches[place] / own if place < len(self.padded_batches) else 1.0
            floor_s, per_token_s, *in_windows_s = _row_at(self.decode_s, own)
            body_s, head_s = _at(self.body_s, verified * more), _at(self.head_s, verified * more)
            shared_s = _at(self.shared_s, micro * self.verified * more)
            found = self.sizes[size] = Decoding(
                own,
                verified,
                microbatches,
                body_s + shared_s + _at(self.joined_s, own) + floor_s,
                per_token_s,
                in_windows_s,
                head_s + _at(self.again_s, own),
                (self.host_step_s + self.host_sequence_s * own) * microbatches,
                self._own_s(own, microbatches),
                (body_s + head_s, shared_s),
            )
        return found

    def _decode_parts(self, batch: DecodeBatch, decoding: Decoding) -> tuple[float, float]:
        """(GPU seconds of a decode step now, growth per step)."""
        size, step, growth = batch.size, batch.step, decoding.per_token_s
        layers_s = decoding.layers_s + growth * batch.context / size
        for slope_s, attended, growing in zip(decoding.in_windows_s, batch.attended, batch.growing, strict=True):
            slope_s /= size
            layers_s += slope_s * (attended + growing * step)
            growth += slope_s * growing
        pass_s = layers_s + decoding.head_s * decoding.microbatches
        # A full pipeline waits for its slowest stage: the one with the most layers, or the last, which has the head.
        if self.pp > 1:
            largest_s = decoding.microbatches * self.largest_stage * layers_s
            last_s = decoding.microbatches * (self.last_stage * layers_s + decoding.head_s)
            if largest_s > max(pass_s, last_s):
                pass_s, growth = largest_s, growth * decoding.microbatches * self.largest_stage
            elif last_s > pass_s:
                pass_s, growth = last_s, growth * decoding.microbatches * self.last_stage
        return pass_s, growth * self.tokens_per_step

    def step(self, pieces: Sequence[Piece], batch: DecodeBatch, decodes: bool) -> tuple[float, float]:
        """(seconds of a step with prefill, extra seconds until its first tokens are out)."""
        of = self._decoding(batch.size) if decodes and batch.size else None
        own, verified, microbatches = of[:3] if of else (0.0, 0.0, 1)
        gpu_s, new, prompts = self._fullest_s(pieces, verified)
        if self.shared_s is not NO_TABLE:
            micro = max(batch.size / self.pp, 1.0) if of else 0.0
            gpu_s += _at(self.shared_s, sum(piece.units for piece in pieces) + micro * self.verified)
        decode_s = 0.0
        if of:
            decode_s, _ = self._decode_parts(batch, of)
            alone_s, shared_s = of.of_prompts_s
            gpu_s += decode_s - alone_s - shared_s
        if new + verified > self.captured_tokens:
            gpu_s = max(gpu_s, self.launch_s)
        whole_s, factors = self._host(gpu_s, own + prompts, microbatches), self.correction
        if self.pp == 1 and factors.decode == factors.prefill:
            return whole_s * factors.decode, 0.0
        alone_s = self._host(decode_s, own, microbatches) if of else 0.0
        whole_s = float(corrected_s(factors, whole_s, min(alone_s, whole_s)))
        if self.pp == 1:
            return whole_s, 0.0
        alone_s *= factors.decode
        taken_s = alone_s + max(whole_s - alone_s, 0.0) * (self.largest_stage or 1 / self.pp)
        return taken_s, whole_s - taken_s

    def _fullest_s(self, pieces: Sequence[Piece], verified: float) -> tuple[float, float, int]:
        """`_rank_s` of the slowest rank."""
        if self.dp == 1:
            return self._rank_s(pieces, verified)
        ranks = {piece.rank for piece in pieces}
        return max(self._rank_s([piece for piece in pieces if piece.rank == rank], verified) for rank in ranks)

    def _rank_s(self, pieces: Sequence[Piece], verified: float) -> tuple[float, float, int]:
        """(GPU seconds of a rank's pieces with `verified` decode tokens, new tokens, prompts)."""
        new, gpu_s = 0.0, self.prefill.floor_s
        for _, units, prior, first, _ in pieces:
            new += units
            gpu_s += self.prefill.seconds(units, prior)
            if first:
                gpu_s += self.encoder_s
        gpu_s += _at(self.body_s, new + verified) + _at(self.head_s, max(1.0, verified + len(pieces)))
        return gpu_s, new, len(pieces)

    def series(self, batch: DecodeBatch) -> StepSeries:
        """The following decode steps in seconds, until a sequence ends or fills a window."""
        of, factor = self._decoding(batch.size), self.correction.decode
        first_s, growth_s = self._decode_parts(batch, of)
        host_s = of.host_s
        if not self.overlapped:
            first_s, host_s = first_s + host_s, 0.0
        added_s = self._added_s(of.added_s, max(first_s, host_s))
        floor_s = host_s + added_s if host_s else 0.0
        return StepSeries(factor * (first_s + added_s), factor * growth_s, factor * floor_s)


def filled_sizes(settings: EngineSettings, verified: int) -> tuple[int, ...]:
    """Ascending sequences on a rank to which a decode step is filled up. The largest batch takes the place of sizes beyond it."""
    sizes, most = settings.padded_batches, min(settings.max_num_seqs, settings.max_num_batched_tokens // verified)
    return sizes if not sizes or sizes[-1] < most else (*sizes[: bisect_left(sizes, most)], most)


def _at(table: list[float], at: float) -> float:
    """Value of a table over whole numbers, interpolated; the last two entries extend it."""
    index = min(int(at), len(table) - 2)
    low = table[index]
    rest = at - index
    return low + rest * (table[index + 1] - low) if rest else low


def _row_at(rows: list[list[float]], at: float) -> list[float]:
    """Row of a table over whole numbers, interpolated; the last two rows extend it."""
    index = min(int(at), len(rows) - 2)
    rest = at - index
    if not rest:
        return rows[index]
    return [low + rest * (high - low) for low, high in zip(rows[index], rows[index + 1], strict=True)]


def windows_of(model: Model) -> tuple[float, ...]:
    """Ascending context lengths in tokens at which the growth rate of a layer's decode attention changes."""
    found = set()
    for kind in model.kinds:
        window = getattr(kind.mixer, "window", 0) or getattr(kind.mixer, "index_topk", 0)
        if window:
            found.add(float(window))
        if getattr(kind.mixer, "chunked", False):
            found.add(window * (1 + FALLS))
        if getattr(kind.mixer, "kv_heads", 0) or getattr(kind.mixer, "kv_lora_rank", 0):
            found.update(corner for corner in corners() if corner < model.max_position)
    return tuple(sorted(found))


def step_clock(kernels: Kernels, *, most_tokens: int, most_rows: int) -> StepClock:
    """The clock of a layout, for steps of up to `most_tokens` tokens and `most_rows` sequences on each rank."""
    shard, settings, host = kernels.shard, kernels.settings, kernels.host
    layout, extras, grid = shard.layout, shard.extras, token_grid()
    body, shared = body_tables(kernels, grid, operations.body)
    every = grid * layout.dp
    again, joined = again_s(kernels, every), joined_s(kernels, every)
    largest, last = architecture.stage_shares(shard.model, layout.pp, settings.pp_remainder)
    head = np.asarray(gpu_seconds(operations.head(shard, every), kernels))
    return StepClock(
        body_s=_table(grid, body, most_tokens),
        head_s=_table(grid, head, most_rows * extras.verified),
        decode_s=_decode_rows(kernels, most_rows),
        prefill=prefill_table(kernels),
        host_step_s=host.per_step_us * MICRO,
        host_sequence_s=host.sequence_us * MICRO,
        overlapped=host.overlapped,
        own_step_s=host.own_step_us * MICRO,
        own_sequence_s=host.own_sequence_us * MICRO,
        launch_s=launch_s(kernels),
        captured_tokens=settings.captured_prefill_tokens,
        front_end=front_end(kernels),
        pp=layout.pp,
        largest_stage=largest,
        last_stage=last,
        verified=extras.verified,
        tokens_per_step=extras.tokens_per_step,
        again_s=_table(grid, again, most_rows),
        joined_s=_table(grid, joined, most_rows),
        encoder_s=encoder_s(kernels),
        dp=layout.dp,
        shared_s=_table(grid, shared, min(most_tokens * layout.dp, int(grid[-1]))),
        padded_batches=filled_sizes(settings, extras.verified),
        correction=kernels.correction,
    )


def _table(grid: NDArray[np.float64], seconds: NDArray[np.float64] | None, most: int) -> list[float]:
    """Seconds for 0 .. most + 1 tokens; zero tokens cost as much as one. Without `seconds`, a table of zeros."""
    if seconds is None:
        return NO_TABLE
    tokens = np.maximum(np.arange(most + 2), 1)
    table: list[float] = np.asarray(lookup(grid, seconds, tokens.astype(float))).tolist()
    return table


def _decode_rows(kernels: Kernels, most_rows: int) -> list[list[float]]:
    """Seconds of a rank's decode attention for 0 .. most + 1 sequences.

    Each row has the seconds without context, per token of mean context, and per token within each window. The time is
    piecewise linear in context with corners at the windows, so the slopes follow from its values there.
    """
    grid = token_grid()
    some = np.concatenate([grid[grid < most_rows], [most_rows + 1.0]])
    edges = [1.0, *windows_of(kernels.shard.model)]
    edges.append(2 * edges[-1])
    ranks = kernels.shard.layout.dp
    at_edges = (decode_attention_s(kernels, some * ranks, edge) for edge in edges)
    values = np.stack(np.broadcast_arrays(some, *at_edges)[1:])
    rates = np.diff(values, axis=0) / np.diff(edges)[:, np.newaxis]
    columns = [values[0] - rates[0], rates[-1], *(rates[:-1] - rates[1:])]
    sequences = np.maximum(np.arange(most_rows + 2.0), 1.0)
    rows: list[list[float]] = np.stack([np.interp(sequences, some, column) for column in columns], axis=1).tolist()
    return rows


MOST_TABLED = 2**17  # most tokens of a step in a table; larger steps extend its last slope


class Deployment(Frozen):
    """Equal replicas: a shard with its timing constants, the memory of one GPU, and the scheduler rules of one rank.

    With a `prefill` part, these replicas decode what that part has prefilled. `transfer` brings its prompts with their
    cache and first token.
    """

    kernels: Kernels
    memory: MemoryUse
    rules: SchedulerRules
    count: int = 1
    prefill: Deployment | None = None
    transfer: Transfer | None = None

    @property
    def shard(self) -> Shard:
        """What each replica runs."""
        return self.kernels.shard

    @property
    def parts(self) -> tuple[Deployment, ...]:
        """The parts through which a request goes, in order: one, or prefill and decode."""
        return (self,) if self.prefill is None else (self.prefill, self)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas in all parts."""
        return sum(part.count * part.shard.layout.gpus for part in self.parts)


def deployment_of(timed: Timed, count: int = 1) -> Deployment:
    """Equal replicas with the scheduling rules of their engine."""
    replica = timed.replica
    rules = of_engine(replica.settings, verified=replica.service.extras.verified)
    return Deployment(timed.kernels, replica.memory, rules, count)


def kv_cache(deployment: Deployment, longest: int) -> KvCache:
    """The cache of a GPU of the tightest stage: blocks for layers that keep all tokens, a fixed part for the others.

    Prefixes that sequences share are subtracted from the pool once and do not count for a sequence. A windowed layer keeps
    the window of every sequence. What prompts in prefill need beyond it is bounded by a step's token budget, for all of
    them together, and is subtracted once.
    """
    extras = deployment.shard.extras
    prefilling = replace(deployment.shard, extras=replace(extras, cached=NOTHING.cached))
    stage = max(deployment.shard.stages, key=lambda s: sequence_bytes(prefilling, s, longest, 1))
    growing, block = growing_bytes(deployment.shard, stage), block_tokens(deployment.shard, stage)
    whole = sequence_bytes(prefilling, stage, longest, 1)
    in_prefill = sequence_bytes(prefilling, stage, longest) - whole
    blocks = -(-(longest + extras.verified - 1) // block)
    shared = extras.cached.shared_tokens // block
    lost = lost_bytes(deployment.shard, stage)
    return KvCache(
        size_bytes=deployment.memory.kv_cache_gib * GIB
        - lost
        - in_prefill
        - extras.cached.distinct * shared * growing * block,
        block_bytes=growing * block,
        block_tokens=block,
        fixed_bytes=max(0.0, whole - blocks * block * growing),
        shared_blocks=shared,
    )


def schedulers(
    deployment: Deployment, requests: Requests, *, longest: int, one_by_one: bool = False
) -> tuple[Scheduler, ...]:
    """The schedulers of equal replicas for requests of up to `longest` tokens.

    Slots and cache of a replica's ranks are pooled, so a rank that is full while another has room is not modelled. Requests
    handed over by a prefill part have passed a front end before, so they take no front-end time here.
    """
    shard, rules, handed = deployment.shard, deployment.rules, deployment.prefill is not None
    most = int(min(rules.budget + rules.slots * rules.tokens_per_decode, MOST_TABLED))
    ticking = step_clock(deployment.kernels, most_tokens=most, most_rows=min(rules.slots, MOST_TABLED) + 1)
    if handed:
        ticking = replace(ticking, front_end=FrontEnd(per_request_ms=0.0, per_prompt_token_us=0.0))
        rules = replace(rules, ahead=False)
    of_rank, windows = kv_cache(deployment, longest), windows_of(shard.model)
    template = replace(of_rank, size_bytes=of_rank.size_bytes * shard.layout.dp)
    return tuple(
        Scheduler(
            requests,
            ticking,
            rules.over(shard.layout.dp, shard.layout.pp),
            replace(template),
            DecodeBatch(windows),
            prefix_hit=shard.extras.cached.share,
            finds=shard.extras.cached.finds,
            tokens_per_step=shard.extras.tokens_per_step,
            one_by_one=one_by_one,
            handed=handed,
        )
        for _ in range(deployment.count)
    )
