"""One replica: waiting and running requests, and the scheduler's loop from event to event.

At the end of a step finished requests leave, arrivals join the queue, and the scheduler lets requests in, all at the same
instant. While nothing is prefilled and nothing can be let in, the batch decodes alone and many steps are taken at once: up
to the next end of a sequence, the next arrival that could be let in, the next filled window or cache, or the caller's limit.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sizing.engine.batch import Clock, DecodeBatch, KvCache, Piece
from sizing.engine.requests import Requests, Watch
from sizing.engine.rules import SchedulerRules
from sizing.model.extras import cached_tokens

# SGLang's admission estimate (server_args and schedule_policy, 0.4 to 0.5): ratio of the output still to come that is
# assumed to be needed, falling from its start to a floor in so many decode steps, reset when idle.
RATIO_START, RATIO_FLOOR_SHARE, RATIO_STEPS = 0.7, 0.14, 600
RETRACT_MARGIN_TOKENS = 20
ROUNDING = 1e-9  # of a token: what sums of means may be off by
MOST_LEFT = 4096  # requests that have ended and are still in the order of admission: so few are worth no search


@dataclass(slots=True)
class Scheduler:
    """The state of one replica. `observer`, where given, is called after each step with what it did.

    Attention-data ranks of a replica step together: each prompt is prefilled on one of them (`ranks`), that with the fewest
    tokens when it is let in, and what decodes is spread evenly. Slots and cache are those of all ranks in one, so that none
    is full while another has room.

    Requests that are `handed` over come with the cache of their prompt and their first token: they are let in where there
    is a slot and cache, and decode from the next step on; one that was preempted is computed again here.
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
    coming: deque[tuple[float, int]] = field(default_factory=deque)
    served_until: float = 0.0
    queue: deque[int] = field(default_factory=deque)
    prefilling: list[int] = field(default_factory=list)
    ranks: dict[int, int] = field(default_factory=dict)
    landing: deque[tuple[float, int]] = field(default_factory=deque)
    done_units: dict[int, float] = field(default_factory=dict)
    units: Callable[[int], float] | None = None
    held: dict[int, float] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    completed: list[int] = field(default_factory=list)
    preempted: int = 0
    refused: list[int] = field(default_factory=list)
    waiting_since: float = math.nan
    held_steps: int = 0
    seen: int = 0
    passes: int = 0
    looked_at_pass: int = 0
    tokens_per_step: float = 1.0
    owed: float = 0.0
    ratio: float = RATIO_START
    observer: Callable[[float, float, Sequence[Piece], int], None] | None = None

    @property
    def in_flight(self) -> int:
        """Requests on their way in, queued or running."""
        return len(self.coming) + len(self.queue) + self.running

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self.prefilling) + len(self.landing) + self.batch.size

    # --- what the caller drives ----------------------------------------------------------------------------------

    def submit(self, request: int) -> None:
        """Take a request that has arrived: it is queued once the server's thread has seen it, one after another.

        One whose cache can never fit is refused, and counted.
        """
        total = self.requests.isl[request] + self.requests.osl[request]
        of_rank = self.pool.size_bytes / self.rules.ranks
        if self.pool.need(total, self.requests.isl[request]) > of_rank * (1 + 1e-12):
            self.refused.append(request)
            return
        if self.clock.serial:
            self.served_until = max(self.served_until, self.requests.arrival[request]) + self.clock.serial
            self.coming.append((self.served_until, request))
        else:
            self._queue(request)

    def _queue(self, request: int) -> None:
        self.queue.append(request)
        self.watch.queue += max(0.0, self.now - self.requests.arrival[request])  # before it, or while a step ran
        self.watch.queue_max = max(self.watch.queue_max, len(self.queue))

    def run(self, until: float) -> None:
        """Take steps while they begin before `until`; stop early when a request ends or there is nothing to do.

        A request that arrives at `until` joins at the first step boundary from then on, so a stretch of decode steps
        ends there.
        """
        while self.now < until and self.step(until) and not self.completed:
            pass

    def step(self, until: float) -> bool:
        """Take a step, or a stretch of them that ends by `until`; returns whether there was anything to do."""
        while self.coming and self.coming[0][0] <= self.now:
            self._queue(self.coming.popleft()[1])
        self._admit()
        if self.coming:
            until = min(until, self.coming[0][0])
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
        """When an idle replica has something to do without a new arrival: the end of a batching window, or never."""
        if not self.queue or self.running or not self.rules.whole_batches:
            return math.inf
        return self.requests.arrival[self.queue[0]] + self.rules.batch_window

    # --- letting requests in -------------------------------------------------------------------------------------

    def _admit(self) -> None:
        rules = self.rules
        if not self.queue:
            if not self.running:
                self.ratio = RATIO_START
            return
        if rules.poll_steps and not self._steps_to_look():
            self.seen = len(self.queue)
        if rules.whole_batches and (self.running or not self._batch_is_due()):
            return
        if rules.hold_steps and self.batch.size and self.held_steps < rules.hold_steps and not self._fills_hold():
            return
        left: list[float] = []  # found once: a long queue of short prompts would scan those in prefill again for each
        while (
            (self.seen if rules.poll_steps else self.queue)
            and self.running < rules.slots
            and len(self.prefilling) < rules.most_prefilling
        ):
            left = left or self._left()
            request = self.queue[0]
            if not rules.whole_batches and max(left) <= 0:
                return
            bytes_ = self._bytes_to_let_in(request, max(left))
            if bytes_ is None or not self._fits_budget(request, max(left)):
                return
            self.queue.popleft()
            self.seen -= 1
            self.pool.held_bytes += bytes_
            self.held[request] = bytes_
            self._in_order(request)
            if math.isnan(self.requests.admitted[request]):
                self.requests.admitted[request] = self.now
            if self.handed and not self.requests.preemptions[request]:
                self._next_token(request, self.requests.arrival[request])
                left = []
                continue
            rank = left.index(max(left))
            if rules.ranks > 1:
                self.ranks[request] = rank
            self.prefilling.append(request)
            left[rank] -= min(
                rules.units_per_request, self.total_units(request) - self.done_units.setdefault(request, 0.0)
            )

    def _steps_to_look(self) -> int:
        """Decode steps until arrivals are looked at again, counted from the last step with prefill; 0 is now."""
        return -(self.passes - self.looked_at_pass) % self.rules.poll_steps if self.batch.size else 0

    def _batch_is_due(self) -> bool:
        if len(self.queue) >= min(self.rules.batch_size, self.rules.slots):
            return True
        oldest = self.requests.arrival[self.queue[0]]
        return self.now >= oldest + self.rules.batch_window

    def _fills_hold(self) -> bool:
        waiting = sum(self.total_units(request) for request in self.queue)
        return waiting + self.batch.size >= self.rules.hold_ratio * self.rules.budget * self.rules.ranks

    def total_units(self, request: int) -> float:
        """Units to prefill: the prompt less its cached prefix, and what was generated before a preemption."""
        if self.units is not None:
            return self.units(request)
        prompt = self.requests.isl[request]
        return prompt - self._cached(request, prompt) + self.requests.generated[request]

    def _cached(self, request: int, prompt: int) -> int:
        """Tokens of a prompt that the prefix cache holds: a share, or what the turn of a conversation finds."""
        return cached_tokens(prompt, self.prefix_hit) if self.finds is None else self.finds(request, prompt)

    def _left(self) -> list[float]:
        """Units of the next step that prefilling requests (and decodes, where they share it) leave of each rank's budget."""
        rules = self.rules
        budget = self._budget(rules.mixed and self.batch.size > 0)
        left = [budget - (self._decoding_on_rank() if rules.shared_budget else 0)] * rules.ranks
        if math.isinf(rules.budget):
            return left
        for request in self.prefilling:
            taken = min(rules.units_per_request, self.total_units(request) - self.done_units[request])
            left[self.ranks.get(request, 0)] -= taken
        return left

    def _budget(self, decodes: bool) -> float:
        """Units that a rank prefills in a step: where the step is a pass of a pipeline, those of all its microbatches."""
        return self.rules.budget * (self.rules.microbatches if decodes else 1)

    def _decoding_on_rank(self) -> float:
        """Units of a rank's budget that decoding sequences take."""
        return self.batch.size * self.rules.tokens_per_decode / self.rules.ranks

    def _fits_budget(self, request: int, left: float) -> bool:
        """A prompt that may not be cut must fit what is left on the emptiest rank, unless it is alone in the step.

        A whole batch is let in at once, and prefilled in as many steps as it takes.
        """
        rules = self.rules
        if rules.whole_batches or rules.splits or not self.prefilling:
            return True
        return self.total_units(request) <= left

    def _bytes_to_let_in(self, request: int, left: float) -> float | None:
        """Cache bytes that `request` takes on admission with so many units left of the step, or None when they are not free."""
        pool, rules, requests = self.pool, self.rules, self.requests
        prompt = requests.isl[request] + requests.generated[request]
        whole = requests.isl[request] + requests.osl[request]
        isl = requests.isl[request]
        takes = pool.need(whole, isl) if rules.reserve == "reserve" else pool.need(prompt, isl)
        must_be_free = takes
        if rules.reserve == "first_chunk":
            must_be_free = pool.need(min(prompt, left), isl)
        elif rules.reserve == "estimate":
            coming = requests.osl[request] - requests.generated[request]
            expected = self.ratio * self.batch.to_come + coming
            must_be_free = takes + expected * pool.block_bytes / pool.block_tokens
        free = pool.free_bytes + pool.slack_bytes
        if rules.mixed and rules.reserve != "reserve":  # those who run take their blocks of the step first
            free -= pool.due_bytes(self.batch.step)
        # A request that finds the engine empty is let in though its output may not fit: it can be preempted later.
        refused = takes > free or (must_be_free > free and self.running > 0)
        return None if refused else takes

    # --- steps ---------------------------------------------------------------------------------------------------

    def _prefill_step(self) -> None:
        """One step with prefill: share the budget out, let decodes along where steps are mixed, end prompts."""
        rules = self.rules
        decodes = rules.mixed and self.batch.size > 0
        if decodes and not self._make_room(1):
            decodes = rules.mixed and self.batch.size > 0
        left = self._budget(decodes) - (self._decoding_on_rank() if rules.shared_budget and decodes else 0)
        left_on = [max(left, 1.0)] * rules.ranks
        pieces: list[Piece] = []
        for request in self.prefilling:
            rank, remaining = self.ranks.get(request, 0), self.total_units(request) - self.done_units[request]
            units = min(rules.units_per_request, remaining, left_on[rank])
            if units <= 0:
                continue
            pieces.append(Piece(request, units, self._prior(request), self.done_units[request] == 0, rank))
            left_on[rank] -= units
            if max(left_on) <= 0:
                break
        taken, extra = self.clock.step(pieces, self.batch, decodes)
        self._pass(taken, 1, decodes, pieces)
        for piece in pieces:
            self.done_units[piece.request] += piece.units
        if decodes:
            self._end_sequences()
            if rules.microbatches > 1:  # each of those that carry prompts waits for the rest of its own pass
                extra /= max(1, math.ceil(sum(piece.units for piece in pieces) / rules.budget))
        self._end_prompts(pieces, extra)

    def _prior(self, request: int) -> float:
        """Tokens that a chunk finds in the cache: units done, and the cached prefix."""
        if self.units is not None:
            return self.done_units[request]
        return self.done_units[request] + self._cached(request, self.requests.isl[request])

    def _end_prompts(self, pieces: Sequence[Piece], extra: float) -> None:
        """Send finished prompts on to their next token: at once, or after the rest of a pass through a pipeline."""
        for piece in pieces:
            request = piece.request
            if self.done_units[request] < self.total_units(request) - 1e-9:
                continue
            self.prefilling.remove(request)
            del self.done_units[request]
            self.ranks.pop(request, None)
            if extra > 0:
                behind = self.landing[-1][0] if self.landing else 0.0  # a pipeline keeps the order
                self.landing.append((max(self.now + extra, behind), request))
            else:
                self._next_token(request)

    def _land(self) -> None:
        """Give those their token whose pass through the pipeline is over."""
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
        if left == 0:
            self._finish(request, at)
        else:
            self.batch.join(request, context, left)
            if self.rules.reserve != "reserve":
                self.pool.join(context - 1, self.batch.step)

    def _decode_stretch(self, until: float) -> None:
        """Many decode steps at once, as many as change nothing but lengths."""
        batch, clock = self.batch, self.clock
        tokens, _ = batch.next_end()
        fills = batch.steps_until_window_fills()
        steps = self._steps_until(tokens if fills is None else min(tokens, fills))
        room = self._steps_with_room()
        if room < 1:
            self._make_room(1)
            if not batch.size:
                return
            room = max(self._steps_with_room(), 1)
            steps = min(steps, self._steps_until(batch.next_end()[0]))
        steps = int(min(steps, room))
        if self.rules.hold_steps and self.queue:
            steps = min(steps, max(1, self.rules.hold_steps - self.held_steps))
        if self.rules.reserve == "estimate" and self.queue and self.running < self.rules.slots:
            steps = 1  # the estimate falls with every step and may let the next one in
        if self.rules.poll_steps and self.queue:
            steps = min(steps, self._steps_to_look() or self.rules.poll_steps)
        steps = 1 if self.one_by_one else max(1, steps)
        taken = clock.stretch(batch, steps)
        if steps > 1 and self.now + taken > until:
            steps = min(steps, clock.steps_within(batch, until - self.now))
            taken = clock.stretch(batch, steps)
        self._pass(taken, steps, True, ())
        self._end_sequences()

    def _tokens_of(self, steps: int) -> int:
        """Whole tokens that `steps` steps give each sequence. The next steps get the rest of a mean."""
        return int(self.owed + steps * self.tokens_per_step + ROUNDING)

    def _steps_until(self, tokens: float) -> float:
        """Steps that give each sequence at least `tokens` tokens."""
        return math.ceil((tokens - self.owed - ROUNDING) / self.tokens_per_step)

    def _steps_with_room(self) -> float:
        """Steps whose tokens all find cache."""
        if self.rules.reserve == "reserve":
            return math.inf
        tokens = self.pool.steps_that_fit(self.batch.size, self.batch.step, self.pool.free_bytes)
        return (
            tokens if math.isinf(tokens) else math.ceil((tokens + 1 - self.owed - ROUNDING) / self.tokens_per_step) - 1
        )

    def _pass(self, taken: float, steps: int, decodes: bool, pieces: Sequence[Piece]) -> None:
        """Let time pass: grow the caches of decoding sequences and the integrals, and tell the observer."""
        watch, batch = self.watch, self.batch
        running = self.running
        watch.queue += taken * len(self.queue)
        watch.batch += taken * running
        watch.busy += taken
        watch.batch_max = max(watch.batch_max, running)
        before = self.pool.held_bytes
        if decodes:
            tokens = self._tokens_of(steps)
            self.owed += steps * self.tokens_per_step - tokens
            self.passes += steps
            if self.rules.reserve != "reserve":
                self.pool.grow(batch.size, batch.step, tokens)
            batch.advance(tokens)
            self.held_steps = self.held_steps + steps if self.queue else 0
            self.ratio = max(
                RATIO_START * RATIO_FLOOR_SHARE,
                self.ratio - steps * RATIO_START * (1 - RATIO_FLOOR_SHARE) / RATIO_STEPS,
            )
        if pieces:
            self.held_steps = 0
            self.looked_at_pass = self.passes
        watch.cache += taken * (before + self.pool.held_bytes) / 2
        watch.cache_max = max(watch.cache_max, self.pool.held_bytes)
        started = self.now
        self.now += taken
        if self.observer is not None:
            self.observer(started, self.now, pieces, batch.size if decodes else 0)

    def _end_sequences(self) -> None:
        batch = self.batch
        while batch.size:
            left, request = batch.next_end()
            if left > 0:
                return
            heapq.heappop(batch.ends)
            self.requests.generated[request] += batch.generated(request) + min(left, 0)
            tokens = batch.leave(request)
            self._release(request, tokens)
            self._finish(request, self.now)

    def _release(self, request: int, tokens: float) -> None:
        """Free the cache of a decoding sequence with a context of `tokens`."""
        if self.rules.reserve == "reserve":
            self.pool.held_bytes -= self.held.pop(request)
        else:
            self.pool.leave(tokens - 1, self.batch.step)
            self.pool.held_bytes -= self.pool.need(tokens - 1, self.requests.isl[request])
            del self.held[request]

    def _finish(self, request: int, at: float) -> None:
        if request in self.held:  # it ended with its prompt and never decoded
            self.pool.held_bytes -= self.held.pop(request)
        self.requests.finished[request] = at + self.clock.outside(self.requests.isl[request])
        self.completed.append(request)

    # --- running out of cache ------------------------------------------------------------------------------------

    def _make_room(self, steps: int) -> bool:
        """Preempt until the next `steps` decode steps have their blocks. Returns whether nothing had to go."""
        untouched = True
        while self.batch.size and self._steps_with_room() < steps:
            victim = self._victim()
            if victim is None:
                break
            self._preempt(victim)
            untouched = False
        return untouched

    def _in_order(self, request: int) -> None:
        """Note a request as the last that was let in; those that have left are dropped when they are many."""
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
        return self._last_joined()

    def _last_joined(self) -> int | None:
        return max(self.batch.joined, key=lambda r: self.batch.joined[r][0], default=None)

    def _preempt(self, request: int) -> None:
        """Drop a sequence's cache; it goes to the head of the queue and its tokens are computed again."""
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
