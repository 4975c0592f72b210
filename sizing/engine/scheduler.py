"""One replica: waiting and running requests, and the scheduler's loop from event to event.

At the end of a step, finished requests leave, arrivals join the queue, and the scheduler admits requests, all at once. With
nothing to prefill or admit, many decode steps are one: up to the next end, arrival, filled window or cache, or a limit.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sizing.engine.batch import ENDLESS_STEPS, Clock, DecodeBatch, KvCache, Piece
from sizing.engine.requests import Requests, Watch
from sizing.engine.rules import SchedulerRules
from sizing.model.extras import cached_tokens

# SGLang's admission estimate (server_args and schedule_policy, 0.4 to 0.5): the assumed share of the remaining output
# that will be needed. It falls from RATIO_START to a floor in RATIO_STEPS decode steps and is reset when idle.
RATIO_START, RATIO_FLOOR_SHARE, RATIO_STEPS = 0.7, 0.14, 600
RATIO_FALL = RATIO_START * (1 - RATIO_FLOOR_SHARE) / RATIO_STEPS
RETRACT_MARGIN_TOKENS = 20
ROUNDING = 1e-9  # tolerance in tokens for sums of means
MOST_LEFT = 4096  # ended requests that may stay in the order of admission before it is cleaned


@dataclass(slots=True)
class Prompt:
    """A prompt in prefill: units left, units before them (`prior`), its attention-data rank, whether its prefill has begun."""

    left: float
    prior: float
    rank: int
    begun: bool = False


@dataclass(slots=True)
class Scheduler:
    """The state of one replica. `observer`, if given, is called after each step with a record of it.

    Attention-data ranks of a replica step together. Each prompt is prefilled on one rank, the one with the fewest tokens
    when the prompt is admitted. Decoding sequences are spread evenly. Slots and cache of all ranks are pooled, so no rank
    is full while another has room.

    `handed` requests arrive with the cache of their prompt and their first token. They are admitted when a slot and cache
    are free, and decode from the next step on. If one is preempted, it is computed again here. An engine that plans `ahead`
    has `decided` on its next step as soon as the one before it is launched.
    """

    requests: Requests
    clock: Clock
    rules: SchedulerRules
    pool: KvCache
    batch: DecodeBatch
    prefix_hit: float = 0.0
    finds: Callable[[int, int], int] | None = None
    now: float = 0.0
    handed: bool = False
    one_by_one: bool = False
    coming: deque[tuple[float, list[int]]] = field(default_factory=deque)
    served_until: float = 0.0
    queue: deque[int] = field(default_factory=deque)
    prefilling: dict[int, Prompt] = field(default_factory=dict)
    landing: deque[tuple[float, int]] = field(default_factory=deque)
    units: Callable[[int], float] | None = None
    held: dict[int, float] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    completed: list[int] = field(default_factory=list)
    preempted: int = 0
    refused: list[int] = field(default_factory=list)
    decided: float = 0.0
    held_steps: int = 0
    ready_steps: int = 0
    seen: int = 0
    passes: int = 0
    looked_at_pass: int = 0
    tokens_per_step: float = 1.0
    owed: float = 0.0
    ratio: float = RATIO_START
    observer: Callable[[float, float, Sequence[Piece], int], None] | None = None

    @property
    def in_flight(self) -> int:
        """Requests that are arriving, queued or running."""
        return sum(len(together) for _, together in self.coming) + len(self.queue) + self.running

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self.prefilling) + len(self.landing) + self.batch.size

    # --- what the caller drives ----------------------------------------------------------------------------------

    def submit(self, request: int) -> None:
        """Accept a request that has arrived. It is queued when the server's thread has handled it, and all that start the run with it.

        No more start it together than have slots. A request whose cache can never fit is refused and counted.
        """
        total = self.requests.isl[request] + self.requests.osl[request]
        if self.pool.need(total, self.requests.isl[request]) > self.pool.size_bytes / self.rules.ranks * (1 + 1e-12):
            self.refused.append(request)
            return
        serial = self.clock.serial
        if serial or self.rules.ahead:
            arrival, last = self.requests.arrival, self.coming[-1][1] if self.coming and not self.watch.busy else []
            starts = 0 < len(last) < self.rules.slots and arrival[last[0]] == arrival[request]
            together = self.coming.pop()[1] if starts else []
            together.append(request)
            self.served_until = max(self.served_until, arrival[request]) + serial
            self.coming.append((self.served_until, together))
        else:
            self._queue(request)

    def _queue(self, request: int) -> None:
        if not self.queue and not self.running:
            self.ratio = RATIO_START
        self.queue.append(request)
        self.watch.queue += max(0.0, self.now - self.requests.arrival[request])  # waited for the thread or a step
        self.watch.queue_max = max(self.watch.queue_max, len(self.queue))

    def run(self, until: float) -> None:
        """Take steps while they begin before `until`; stop early when a request ends or there is nothing to do.

        A request that arrives at `until` joins at the next step boundary, so a stretch of decode steps ends there.
        """
        while self.now < until and self.step(until) and not self.completed:
            pass

    def step(self, until: float) -> bool:
        """Take a step, or a stretch of decode steps that ends by `until`. Returns whether there was anything to do."""
        while self.coming and self.coming[0][0] <= (self.decided if self.rules.ahead and self.running else self.now):
            for request in self.coming.popleft()[1]:
                self._queue(request)
        if self.queue:
            self._admit()
        until = min(until, self.coming[0][0]) if self.coming else until
        if self.prefilling:
            self._prefill_step()
        elif self.batch.size:
            self._decode_stretch(min(until, self.landing[0][0]) if self.landing else until)
        elif self.landing:
            self._pass(min(until, self.landing[0][0]) - self.now, 0, False, ())
        elif self.coming:
            self.now = until
        else:
            return False
        if self.landing:
            self._land()
        return True

    @property
    def wakes_at(self) -> float:
        """Time at which an idle replica has work without a new arrival: the end of a batching window, or infinity."""
        if not self.queue or self.running or not self.rules.whole_batches:
            return math.inf
        return self.requests.arrival[self.queue[0]] + self.rules.batch_window

    # --- admitting requests --------------------------------------------------------------------------------------

    def _admit(self) -> None:
        rules = self.rules
        if rules.poll_steps and not self._steps_to_look():
            self.seen = len(self.queue)
        if rules.whole_batches and (self.running or not self._batch_is_due()):
            return
        if rules.hold_steps and self.batch.size and self.held_steps < rules.hold_steps and not self._fills_hold():
            return
        left: list[float] = []  # computed once, because scanning all prefills for each queued prompt is slow
        while (
            (self.seen if rules.poll_steps else self.queue)
            and self.running < rules.slots
            and len(self.prefilling) < rules.most_prefilling
        ):
            left = left or self._left()
            request = self.queue[0]
            if not rules.whole_batches and max(left) <= 0:
                return
            takes, lacks = self._bytes_to_let_in(request, max(left))
            if lacks > 0 or not self._fits_budget(request, max(left)):
                return
            self.queue.popleft()
            self.seen -= 1
            self.pool.held_bytes += takes
            self.held[request] = takes
            self._in_order(request)
            if math.isnan(self.requests.admitted[request]):
                self.requests.admitted[request] = self.now
            if self.handed and not self.requests.preemptions[request]:
                self._next_token(request, self.requests.arrival[request])
                left = []
                continue
            rank, units = left.index(max(left)), self.total_units(request)
            self.prefilling[request] = Prompt(units, self._in_cache(request), rank)
            left[rank] -= min(rules.units_per_request, units)

    def _steps_to_look(self) -> int:
        """Decode steps until the scheduler looks at arrivals again, counted from the last step with prefill; 0 means now."""
        return -(self.passes - self.looked_at_pass) % self.rules.poll_steps if self.batch.size else 0

    def _batch_is_due(self) -> bool:
        full = len(self.queue) >= min(self.rules.batch_size, self.rules.slots)
        return full or self.now >= self.requests.arrival[self.queue[0]] + self.rules.batch_window

    def _fills_hold(self) -> bool:
        waiting = sum(self.total_units(request) for request in self.queue)
        return self.rules.fill_hold(len(self.queue), waiting, self.batch.size, self.ready_steps)

    def total_units(self, request: int) -> float:
        """Units to prefill: the prompt without its cached prefix, plus what was generated before a preemption."""
        if self.units is not None:
            return self.units(request)
        return self.requests.isl[request] - self._in_cache(request) + self.requests.generated[request]

    def _in_cache(self, request: int) -> int:
        """Tokens of a prompt found in the prefix cache: a fixed share, or what a conversation's turn finds."""
        prompt = self.requests.isl[request]
        return cached_tokens(prompt, self.prefix_hit) if self.finds is None else self.finds(request, prompt)

    def _free_units(self, decodes: bool) -> float:
        """Units of a rank's budget that decodes leave. In a pipeline, a pass has the budgets of all its microbatches."""
        rules = self.rules
        if not decodes:
            return rules.budget
        taken = self.batch.size * rules.tokens_per_decode / rules.ranks if rules.shared_budget else 0.0
        return rules.budget * rules.microbatches - taken

    def _left(self) -> list[float]:
        """Units of each rank's budget in the next step that prefilling requests, and decodes that share it, leave."""
        rules = self.rules
        left = [self._free_units(rules.mixed and self.batch.size > 0)] * rules.ranks
        if math.isfinite(rules.budget):
            for prompt in self.prefilling.values():
                left[prompt.rank] -= min(rules.units_per_request, prompt.left)
        return left

    def _fits_budget(self, request: int, left: float) -> bool:
        """Whether a prompt that may not be cut fits the units left on the emptiest rank, or is alone in the step.

        A whole batch is admitted at once and prefilled in as many steps as it takes.
        """
        rules = self.rules
        if rules.whole_batches or rules.splits or not self.prefilling:
            return True
        return self.total_units(request) <= left

    def _bytes_to_let_in(self, request: int, left: float) -> tuple[float, float]:
        """(cache bytes that `request` takes on admission, bytes that are missing) with `left` units left of the step.

        The missing bytes are infinite if sequences must end first, and not positive if the request may be admitted.
        """
        pool, rules, requests = self.pool, self.rules, self.requests
        isl, osl, generated = requests.isl[request], requests.osl[request], requests.generated[request]
        takes = must_be_free = pool.need(isl + (osl if rules.reserve == "reserve" else generated), isl)
        if rules.reserve == "first_chunk":
            must_be_free = pool.need(min(isl + generated, left), isl)
        elif rules.reserve == "estimate":
            expected = self.ratio * self.batch.to_come + osl - generated
            must_be_free = takes + expected * pool.block_bytes / pool.block_tokens
        free = pool.free_bytes + pool.slack_bytes
        if rules.mixed and rules.reserve != "reserve":  # running sequences take their blocks of the step first
            free -= pool.due_bytes(self.batch.step)
        if takes > free:
            return takes, math.inf
        # A request that finds the engine empty is admitted even if its output may not fit: it can be preempted later.
        return takes, must_be_free - free if self.running else 0.0

    def _steps_until_let_in(self) -> int:
        """Decode steps until the head of the queue may be admitted, if no sequence ends: one, unless rules count steps."""
        rules, pool, batch, steps = self.rules, self.pool, self.batch, ENDLESS_STEPS
        if rules.hold_steps:
            ready = rules.ready_wait(len(self.queue), self.ready_steps)
            steps = int(max(1, min(rules.hold_steps - self.held_steps, ready)))
        if rules.poll_steps:
            steps = min(steps, self._steps_to_look() or rules.poll_steps)
        if rules.reserve == "estimate" and self.running < rules.slots:  # the estimate falls with each step
            _, lacks = self._bytes_to_let_in(self.queue[0], math.inf)
            falls = RATIO_FALL * batch.to_come + self.ratio * batch.size  # at most, in tokens per step
            if 0 < lacks < math.inf:
                steps = min(steps, max(1, int(lacks * pool.block_tokens / pool.block_bytes / falls)))
        return steps

    # --- steps ---------------------------------------------------------------------------------------------------

    def _prefill_step(self) -> None:
        """One step with prefill: distribute the budget, include decodes where steps are mixed, finish prompts."""
        rules = self.rules
        decodes = rules.mixed and self.batch.size > 0
        if decodes and not self._make_room():
            decodes = self.batch.size > 0
        left_on = [max(self._free_units(decodes), 1.0)] * rules.ranks
        pieces: list[Piece] = []
        for request, prompt in self.prefilling.items():
            units = min(rules.units_per_request, prompt.left, left_on[prompt.rank])
            if units <= 0:
                continue
            pieces.append(Piece(request, units, prompt.prior, not prompt.begun, prompt.rank))
            left_on[prompt.rank] -= units
            if max(left_on) <= 0:
                break
        taken, extra = self.clock.step(pieces, self.batch, decodes)
        on_rank = sum(piece.units for piece in pieces) / min(rules.ranks, len(pieces))
        self.decided = self.now + min(taken, self.clock.launching(on_rank))
        self._pass(taken, 1, decodes, pieces)
        if decodes:
            self._end_sequences()
            if rules.microbatches > 1:  # each microbatch with prompts waits only for the rest of its own pass
                extra /= max(1, math.ceil(sum(piece.units for piece in pieces) / rules.budget))
        for request, units, *_ in pieces:
            self._computed(request, units, extra)

    def _computed(self, request: int, units: float, extra: float) -> None:
        """Record prefilled units of a prompt. A finished prompt gets its next token after the rest of its pipeline pass."""
        prompt = self.prefilling[request]
        prompt.left -= units
        prompt.prior += units
        prompt.begun = True
        if prompt.left > ROUNDING:
            return
        del self.prefilling[request]
        if extra > 0:
            behind = self.landing[-1][0] if self.landing else 0.0  # a pipeline keeps the order
            self.landing.append((max(self.now + extra, behind), request))
        else:
            self._next_token(request)

    def _land(self) -> None:
        """Give the next token to requests whose pass through the pipeline is over."""
        while self.landing and self.landing[0][0] <= self.now:
            at, request = self.landing.popleft()
            self._next_token(request, at)

    def _next_token(self, request: int, at: float | None = None) -> None:
        """Give a prefilled request its next token (at `at`, if not now); it joins the decoding batch or ends."""
        requests = self.requests
        at = self.now if at is None else at
        if math.isnan(requests.first_token[request]):
            requests.first_token[request] = at + self.clock.outside(requests.isl[request])
        requests.generated[request] += 1
        context = requests.isl[request] + requests.generated[request]
        left = requests.osl[request] - requests.generated[request]
        if left <= 0:
            self._finish(request, at)
        else:
            self.batch.join(request, context, -(-left // self.rules.block_steps) * self.rules.block_steps)
            if self.rules.reserve != "reserve":
                self.pool.join(context - 1, self.batch.step)

    def _decode_stretch(self, until: float) -> None:
        """Take many decode steps at once, as long as only lengths change."""
        batch = self.batch
        tokens, _ = batch.next_end()
        fills = batch.steps_until_window_fills()
        steps = self._steps_until(tokens if fills is None else min(tokens, fills))
        if not self._has_room(steps):
            self._make_room()
            if not batch.size:
                return
            steps = int(min(steps, self._steps_until(batch.next_end()[0]), max(self._steps_with_room(), 1)))
        if self.queue:
            steps = min(steps, self._steps_until_let_in())
        steps = 1 if self.one_by_one else max(1, steps)
        series = self.clock.series(batch)
        taken = series.time(steps)
        if steps > 1 and self.now + taken > until:
            steps = min(steps, series.steps_within(until - self.now))
            taken = series.time(steps)
        self.decided = self.now + series.time(steps - 1)
        self._pass(taken, steps, True, ())
        self._end_sequences()

    def _tokens_of(self, steps: int) -> int:
        """Whole tokens that `steps` steps give each sequence. The fraction left over is added to the next steps."""
        return steps if self.tokens_per_step == 1 else int(self.owed + steps * self.tokens_per_step + ROUNDING)

    def _steps_until(self, tokens: int) -> int:
        """Steps that give each sequence at least `tokens` tokens."""
        return math.ceil((tokens - self.owed - ROUNDING) / self.tokens_per_step)

    def _has_room(self, steps: int) -> bool:
        """Whether the tokens of `steps` steps fit the cache. Blocks are counted only when they may be short."""
        pool, tokens = self.pool, self._tokens_of(steps)
        most = (tokens // pool.block_tokens + 1) * self.batch.size
        return most * pool.block_bytes <= pool.size_bytes - pool.held_bytes or self._steps_with_room() >= steps

    def _steps_with_room(self) -> float:
        """Number of steps whose tokens fit the cache."""
        if self.rules.reserve == "reserve":
            return math.inf
        tokens = self.pool.steps_that_fit(self.batch.size, self.batch.step, self.pool.free_bytes)
        if math.isinf(tokens):
            return tokens
        return math.ceil((tokens + 1 - self.owed - ROUNDING) / self.tokens_per_step) - 1

    def _pass(self, taken: float, steps: int, decodes: bool, pieces: Sequence[Piece]) -> None:
        """Advance time: update the caches of decoding sequences and the integrals, and call the observer."""
        watch, batch, pool, queued = self.watch, self.batch, self.pool, len(self.queue)
        running, before, started = self.running, pool.held_bytes, self.now
        if decodes:
            tokens = self._tokens_of(steps)
            self.owed += steps * self.tokens_per_step - tokens
            self.passes += steps
            if self.rules.reserve != "reserve":
                pool.grow(batch.size, batch.step, tokens)
            batch.advance(tokens)
            self.held_steps = self.held_steps + steps if queued else 0
            self.ready_steps = self.ready_steps + steps if queued >= self.rules.ranks else 0
            if self.rules.reserve == "estimate":
                self.ratio = max(RATIO_START * RATIO_FLOOR_SHARE, self.ratio - steps * RATIO_FALL)
        if pieces:
            self.held_steps = self.ready_steps = 0
            self.looked_at_pass = self.passes
        held = pool.held_bytes
        watch.queue += taken * queued
        watch.batch += taken * running
        watch.busy += taken
        watch.cache += taken * (before + held) / 2
        watch.batch_max = max(watch.batch_max, running)
        watch.cache_max = max(watch.cache_max, held)
        self.now = started + taken
        if self.observer is not None:
            self.observer(started, self.now, pieces, batch.size if decodes else 0)

    def _end_sequences(self) -> None:
        batch = self.batch
        while batch.size and batch.ends[0][0] <= batch.step:
            left, request = batch.next_end()
            if left > 0:
                return
            heapq.heappop(batch.ends)
            tokens = batch.leave(request)
            self._release(request, tokens)
            self._finish(request, self.now)

    def _release(self, request: int, tokens: float) -> None:
        """Free the cache of a decoding sequence with a context of `tokens`."""
        held = self.held.pop(request)
        if self.rules.reserve != "reserve":
            self.pool.leave(tokens - 1, self.batch.step)
            held = self.pool.need(tokens - 1, self.requests.isl[request])
        self.pool.held_bytes -= held

    def _finish(self, request: int, at: float) -> None:
        if request in self.held:  # it ended with its prompt and never decoded
            self.pool.held_bytes -= self.held.pop(request)
        self.requests.generated[request] = self.requests.osl[request]
        self.requests.finished[request] = at + self.clock.outside(self.requests.isl[request])
        self.completed.append(request)

    # --- running out of cache ------------------------------------------------------------------------------------

    def _make_room(self) -> bool:
        """Preempt sequences until the next decode step has its blocks. Returns whether none was preempted."""
        untouched = True
        while self.batch.size and not self._has_room(1):
            victim = self._victim()
            if victim is None:
                break
            self._preempt(victim)
            untouched = False
        return untouched

    def _in_order(self, request: int) -> None:
        """Record a request as the last admitted. Requests that have left are dropped once they are many."""
        self.order.append(request)
        if len(self.order) > 2 * len(self.held) + MOST_LEFT:
            self.order = [each for each in self.order if each in self.held]

    def _victim(self) -> int | None:
        joined = self.batch.joined
        if self.running <= 1:
            return None
        if self.rules.preempts == "retract_shortest_output":
            isl = self.requests.isl
            return min(joined, key=lambda r: (self.requests.generated[r] + self.batch.generated(r), -isl[r]))
        while self.order:
            request = self.order[-1]
            if request in joined:
                return request
            if request in self.held:  # still in prefill, which is not interrupted
                break
            self.order.pop()
        return max(joined, key=lambda r: joined[r][0], default=None)

    def _preempt(self, request: int) -> None:
        """Drop a sequence's cache and put it at the head of the queue; its tokens are computed again."""
        self.requests.generated[request] += self.batch.generated(request)
        tokens = self.batch.leave(request)
        self._release(request, tokens)
        self.queue.appendleft(request)
        self.seen += 1
        self.requests.preemptions[request] += 1
        self.preempted += 1
        if self.rules.preempts == "retract_shortest_output":
            outputs = [self.requests.generated[r] + self.batch.generated(r) for r in self.batch.joined]
            longest = sum(self.requests.osl[r] for r in self.batch.joined) or 1
            self.ratio = min(1.0, (sum(outputs) + RETRACT_MARGIN_TOKENS * len(outputs)) / longest)
