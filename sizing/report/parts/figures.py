"""The figures of one layout at one load, named as in the records."""

from __future__ import annotations

from typing import NamedTuple

from sizing.answers.answer import Answer, Outcome, Pool
from sizing.formats.view import filled
from sizing.formats.words import duration, number, percent, rounded_usd
from sizing.model.attention import Numeric
from sizing.model.memory import MemoryUse
from sizing.question.demand import AT_ONCE, Readings, readings
from sizing.question.question import Question, think_time_of
from sizing.replica import histories
from sizing.replica import step as step_model
from sizing.replica.replica import Replica
from sizing.replica.step import Batch, Step
from sizing.report.parts.question import habits
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.units import HOURS_PER_MONTH, MILLI, SECONDS_PER_HOUR, kwh_per_million_tokens, usd_per_million_tokens
from sizing.specs.units import Statistics as Statistics

HEADROOM_OF = {"requests/s": "requests_per_s", "requests in flight": "concurrency", "users": "users"}


class LoadFigures(NamedTuple):
    """The load of the deployment, and its headroom.

    Concurrency counts requests from arrival to last token, including time in the front end and the queue. `headroom` is the
    growth of the demand that the limits allow. `headroom_of` names the quantity of the demand that grows: `concurrency`,
    `users`, else `requests_per_s`.
    """

    requests_per_s: float
    concurrency: float
    concurrency_per_replica: float
    max_requests_per_s: float
    headroom: float
    headroom_of: str
    share_of_max_requests_per_s: float

    def full(self, replicas: int, reserve: float) -> bool:
        """Whether one replica less would be above what the limits allow, with a `reserve` on top of the demand."""
        fewer = (1 + self.headroom) * (replicas - 1)
        return replicas > 1 and fewer < (1 + reserve) * replicas * (1 + ROUNDING_SLACK)


class Throughput(NamedTuple):
    """Throughput at that load."""

    requests_per_s_per_replica: float
    requests_per_s_per_gpu: float
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    total_tokens_per_s: float
    input_tokens_per_s: float


class Latency(NamedTuple):
    """Latencies under load, and latencies of a single request on an idle replica."""

    ttft_ms: Statistics
    itl_ms: Statistics
    e2e_ms: Statistics
    solo_ttft_ms: float
    solo_itl_ms: float | None


class Utilisation(NamedTuple):
    """The shares of peak compute and bandwidth in a prefill and a decode step, and the peak that each is nearer to."""

    prefill_mfu: float
    prefill_bound: str
    decode_mbu: float | None
    decode_mfu: float | None
    decode_bound: str | None


class Users(NamedTuple):
    """The daily active users that correspond to the load, with their habits.

    `stated` is False if neither the demand nor the options mention users. The users are then derived from the rate.
    """

    daily_active_users: float
    requests_per_user_per_day: float
    active_hours: float
    peak_to_mean: float
    stated: bool


class Cost(NamedTuple):
    """The cost at the answer's load around the clock, and at the mean load of the users' day with GPUs always on.

    Figures by output token are null for a task without output tokens, which has a figure by input token instead.
    """

    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_output_tokens_mean_load: float | None
    usd_per_gpu_hour: float | None
    price_source: str | None
    power_w: float
    kwh_per_million_output_tokens: float | None
    usd_per_million_input_tokens: float | None = None
    kwh_per_million_input_tokens: float | None = None
    usd_per_month: float | None = None


class BatchJob(NamedTuple):
    """The documents of offline work, the time that they may take, the time until the last is done, and the price of the GPUs for that time."""

    documents: float
    within_s: float
    least_s: float
    usd: float | None

    @property
    def words(self) -> str:
        """Write how long the documents take, and the price."""
        price = "" if self.usd is None else f"; {rounded_usd(self.usd)} for {duration(self.within_s)}"
        return f"all done in {duration(self.least_s)}, the last request too{price}"


class Simulation(NamedTuple):
    """The check of an answer by a simulation of one replica under its share of the demand.

    `batch_mean` counts the requests in the running batch, and `queue_mean` the requests that wait for it. The other requests
    in a replica's concurrency are in the front end.
    """

    passed: bool
    sizes_tried: int
    requests: int
    stable: bool
    queue_mean: float
    batch_mean: float
    kv_utilisation_mean: float
    kv_utilisation_max: float
    preemptions: int


class IdleConversations(NamedTuple):
    """Idle conversations of one replica: the number to keep in cache, the room for them, and the assumed cache hit share."""

    needed: float
    room: float
    histories_kept: float

    @property
    def words(self) -> str:
        """Write the number to keep beside the room, and the share of turns that find their history."""
        kept = (
            f"{number(self.needed)} conversations to keep between turns on each replica, room for {number(self.room)}"
        )
        if self.histories_kept >= 1:
            return kept
        found = f"{percent(self.histories_kept)} of turns are taken to find their history"
        return f"{kept}: the hit rate of a large enough cache cannot hold, {found}"


class Figures(NamedTuple):
    """All figures of an answer from one pool, and the two steps that the utilisation comes from."""

    load: LoadFigures
    throughput: Throughput
    latency: Latency
    memory: MemoryUse
    utilisation: Utilisation
    users: Users
    cost: Cost
    readings: Readings
    simulation: Simulation | None
    idle_conversations: IdleConversations | None
    batch_job: BatchJob | None
    prefill: Step
    decode: Step | None


def figures(best: Answer, outcome: Outcome) -> Figures:
    """All figures of an answer from one pool."""
    (prefill, decode), load, question = phase_steps(best, outcome), load_figures(best, outcome), outcome.question
    return Figures(
        load=load,
        throughput=throughput(best, outcome),
        latency=latency(best),
        memory=memory_of(best.pool.replica),
        utilisation=utilisation(prefill, decode),
        users=users_of(best, question),
        cost=cost_figures(best, question),
        readings=readings_of(load, question),
        simulation=simulation(best, outcome),
        idle_conversations=idle_conversations(best.pool, question),
        batch_job=batch_job(best, question),
        prefill=prefill,
        decode=decode,
    )


def load_figures(best: Answer, outcome: Outcome) -> LoadFigures:
    """The load: requests in flight by Little's law, and the headroom up to the highest load of these replicas."""
    running = best.requests_per_s / best.pool.count * best.latency_s("e2e")["mean"]
    served, target = best.requests_per_s, outcome.question.target
    margin = best.pool.margin if target.amount is None else 1.0  # it divides the rate of given GPUs
    most = best.pool.capacity.requests_per_s * best.pool.count * margin
    stated = None if target.unit == "requests/s" else target.amount
    headroom = (most / served if stated is None else best.pool.capacity.amount * best.pool.count / stated) - 1
    in_flight = stated if stated is not None and target.unit != "users" else running * best.pool.count
    return LoadFigures(
        requests_per_s=served,
        concurrency=in_flight,
        concurrency_per_replica=in_flight / best.pool.count,
        max_requests_per_s=most,
        headroom=max(0.0, headroom),
        headroom_of=HEADROOM_OF[target.unit],
        share_of_max_requests_per_s=min(1.0, served / most) if most else 0.0,
    )


def batch_job(best: Answer, question: Question) -> BatchJob | None:
    """The documents of a demand that states them, and how long the GPUs take until the last is done; else None."""
    demand = question.origin.workload.demand
    if demand is None or demand.documents is None or demand.within_s is None:
        return None
    from sizing.answers.sizes import batch_s  # only here, because it loads the simulator

    least_s = batch_s(best, demand.documents)
    usd = best.usd_per_hour
    usd = None if usd is None else usd * demand.within_s / SECONDS_PER_HOUR
    return BatchJob(demand.documents, demand.within_s, least_s, usd)


def simulation(best: Answer, outcome: Outcome) -> Simulation | None:
    """The figures of the simulation that checked the answer; the latencies then come from it too."""
    run = best.run
    if run is None:
        return None
    return filled(
        Simulation,
        run,
        passed=outcome.simulation.passed,
        sizes_tried=outcome.simulation.tries,
        requests=run.arrived,
        kv_utilisation_mean=run.cache_mean,
        kv_utilisation_max=run.cache_max,
    )


def readings_of(load: LoadFigures, question: Question) -> Readings:
    """The same load as a rate, as requests in flight and as concurrent users."""
    think_s = question.target.think_time_s or think_time_of(question.origin.workload)
    return readings(load.requests_per_s, load.concurrency / load.requests_per_s, think_s)


def throughput(best: Answer, outcome: Outcome) -> Throughput:
    """Throughput per replica, per GPU and in tokens."""
    rate, osl, isl = best.requests_per_s, outcome.question.service.output_tokens, outcome.question.service.isl
    return Throughput(
        requests_per_s_per_replica=rate / best.pool.count,
        requests_per_s_per_gpu=rate / best.gpus,
        output_tokens_per_s=rate * osl,
        output_tokens_per_s_per_gpu=rate * osl / best.gpus,
        total_tokens_per_s=rate * (isl + osl),
        input_tokens_per_s=rate * isl,
    )


def latency(best: Answer) -> Latency:
    """Latencies in ms under the load, and of a single request."""
    decodes = best.decode.timed.batching.osl > 1
    return Latency(
        ttft_ms=statistics(best.latency_s("ttft")),
        itl_ms=statistics(best.latency_s("itl")) if decodes else Statistics(*[None] * 5),
        e2e_ms=statistics(best.latency_s("e2e")),
        solo_ttft_ms=best.prefill.timed.solo_ttft_s / MILLI,
        solo_itl_ms=best.decode.timed.solo_itl_s / MILLI if decodes else None,
    )


def mean_ms(best: Answer, name: str, question: Question, statistic: str = "mean") -> float | None:
    """A `statistic` of `ttft_ms`, `itl_ms` or `e2e_ms` in ms; None if there is no token after the first."""
    if name == "itl_ms" and question.service.osl <= 1:
        return None
    return best.latency_s(name.removesuffix("_ms"))[statistic] / MILLI


def statistics(seconds: dict[str, float]) -> Statistics:
    """The statistics in ms of `seconds`."""
    return Statistics(*(seconds[key] / MILLI for key in Statistics._fields))


def phase_steps(best: Answer, outcome: Outcome) -> tuple[Step, Step | None]:
    """Time one prefill step (one prompt's chunk) and one decode step (the batch at this load), exactly."""
    load, service = best.pool.timed, outcome.question.service
    chunk, cached = float(load.batching.chunk_tokens), float(service.isl - load.batching.isl)
    whole = Batch(prefill_sequences=1.0, prefill_tokens=chunk, prefill_prior_tokens=cached, finishing=1.0)
    prefill = step_model.step(load.kernels, whole)
    if service.osl <= 1:
        return prefill, None
    micro: Numeric = max(1.0, best.pool.point.decoding / load.batching.pp)
    decoding = Batch(decode_sequences=micro, decode_context_tokens=service.isl + service.osl / 2)
    return prefill, step_model.step(load.kernels, decoding)


def utilisation(prefill: Step, decode: Step | None) -> Utilisation:
    """MFU and MBU of both kinds of step, each with the peak that it is nearer to."""
    return Utilisation(
        prefill_mfu=prefill.mfu,
        prefill_bound=bound(prefill),
        decode_mbu=decode.mbu if decode else None,
        decode_mfu=decode.mfu if decode else None,
        decode_bound=bound(decode) if decode else None,
    )


def bound(step: Step) -> str:
    """The peak that a step is nearer to: `compute` or `memory`."""
    return "compute" if step.mfu > step.mbu else "memory"


def memory_of(replica: Replica) -> MemoryUse:
    """The memory of one GPU of a replica, and the longest sequence that fits."""
    return replica.memory._replace(max_model_len_that_fits=replica.longest_that_fits())


def users_of(best: Answer, question: Question) -> Users:
    """The users that correspond to the load. They are `stated` if the demand counts them or planning states their habits."""
    user = habits(question)
    demand, planning = question.origin.workload.demand, question.origin.workload.planning
    own = (planning.requests_per_user_per_day, planning.active_hours, planning.peak_to_mean)
    stated = any(value is not None for value in own)
    if demand is not None and demand.kind not in ("requests_per_s", *AT_ONCE):
        stated = demand.daily_active_users is not None
    return filled(Users, user, daily_active_users=user.users_of(best.requests_per_s), stated=stated)


def idle_conversations(pool: Pool, question: Question) -> IdleConversations | None:
    """The idle conversations of one replica of `pool`; None without a think time."""
    found = histories.idle_conversations(pool.replica, question.target, pool.point, pool.count)
    if found is None:
        return None
    return IdleConversations(found.needed, found.room, pool.replica.service.extras.cached.kept)


def a_month(usd_per_hour: float | None) -> float | None:
    """The cost of a month around the clock, in $."""
    return None if usd_per_hour is None else usd_per_hour * HOURS_PER_MONTH


def cost_figures(best: Answer, question: Question) -> Cost:
    """The cost and the energy of an answer; of separate pools the price of a GPU is the mean of both."""
    # A pooling task counts prompt tokens.
    pooled, counted = question.service.model.pooled, "input" if question.service.model.pooled else "output"
    tokens_per_s = best.requests_per_s * (question.service.isl if pooled else question.service.output_tokens)
    usd, kwh = (f"{unit}_per_million_{counted}_tokens" for unit in ("usd", "kwh"))
    per_million = usd_per_million_tokens(best.usd_per_hour, tokens_per_s)
    stated, found = question.origin.workload.demand, question.origin.demanded
    by_users = stated is not None and stated.daily_active_users is not None and not pooled
    mean_per_s = found.mean_per_s if found is not None and by_users else None
    at_mean = None if per_million is None or mean_per_s is None else per_million * best.requests_per_s / mean_per_s
    sources = dict.fromkeys(pool.replica.gpu_type.price_source for pool in best.pools)
    return filled(
        Cost,
        best,
        {usd: per_million, kwh: kwh_per_million_tokens(best.power_w, tokens_per_s)},
        dict.fromkeys(Cost._fields),
        usd_per_million_output_tokens_mean_load=at_mean,
        price_source=" ; ".join(source for source in sources if source) or None,
    )
