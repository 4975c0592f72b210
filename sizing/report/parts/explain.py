"""The derivation of figures: formula, values, source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sizing.answers.answer import Answer, Outcome, Pool
from sizing.formats.view import Explanation
from sizing.formats.words import plural
from sizing.model.memory import MemoryUse
from sizing.question.question import Question
from sizing.replica import curves as curves_of
from sizing.replica.replica import Replica, cache_format
from sizing.replica.step import Step
from sizing.report.parts.figures import Figures, LoadFigures
from sizing.specs.bands import EVEN
from sizing.specs.engine import EngineSettings
from sizing.specs.units import MILLI
from sizing.specs.workload import Serving

POOL_FORMULAS = {
    "utilisation": "visible * memory_fraction - weights - activation - non_torch{graphs}{states}",
    "free_before_load": "(visible - non_torch) * memory_fraction - weights{states}; activation and graphs live in the rest",
    "free_after_load": "(visible - weights - activation - non_torch - graphs) * memory_fraction{states}",
}
CACHE_SIZE = "--kv-cache-memory-bytes"
SIZE, MEMORY, LATENCY, MONEY, CONVERSATIONS = (
    "How many GPUs", "Memory of one GPU", "Latency", "Users and cost", "Conversations",
)  # fmt: skip
SLOTS = {"kv_cache": "KV cache", "max_num_seqs": "engine's max_num_seqs"}
MOST_OPERATIONS = 4  # the longest operations of a step
STEP = "the sum of its operations, plus the time of the host"
CLOSED, SIMULATED = "closed form of in-flight batching", "simulation of one replica"


class Formula(NamedTuple):
    """How a figure is derived: its heading, unit, formula and source."""

    about: str
    unit: str
    formula: str
    source: str


FORMULAS = {
    "weights": Formula(MEMORY, "GiB", "sum over weight matrices of inputs * outputs * bytes of their format, as split over this GPU", "config.json"),
    "activation": Formula(MEMORY, "GiB", "max(tokens * (a*hidden + buffers), rows * vocabulary * sampler_bytes + 2*tokens*hidden), or the image encoder's peak; buffers of the widest layer: b*intermediate/tp, latent attention's or a recurrent state's", "engine profile"),
    "KV cache": Formula(MEMORY, "GiB", "", "engine profile, GPU profile"),
    "max concurrency": Formula(MEMORY, "sequences", "(KV cache - reserved blocks) / cache of one sequence of max_model_len tokens, in whole blocks", "model's config, engine profile"),
    "GPUs": Formula(SIZE, "", "ceil(demand * (1 + headroom) / most per replica) * GPUs per replica", "search over layouts"),
    "most per replica": Formula(SIZE, "", "the highest load with which every limit holds, the running requests fit the slots, and the queue does not grow", CLOSED),
    "margin for the confidence asked": Formula(SIZE, "times the demand", "the most as predicted / the most with the errors of a published run; the quantile of this ratio over the runs", "published measurements over predictions"),
    "concurrency per replica": Formula(SIZE, "requests in flight", "Little's law: requests/s * E2E; requests in flight are in the front end, in the queue, or running", "Little (1961)"),
    "TTFT": Formula(LATENCY, "ms", "", CLOSED),
    "prefill step": Formula(LATENCY, "ms", STEP, "llmsize step lists every operation"),
    "ITL": Formula(LATENCY, "ms", "", CLOSED),
    "decode step": Formula(LATENCY, "ms", STEP, "llmsize step lists every operation"),
    "E2E": Formula(LATENCY, "ms", "TTFT + ITL * (OSL - 1)", "definition"),
    "daily active users": Formula(MONEY, "users", "requests/s * 3600 * active hours / (requests per user and day * peak to mean)", ""),
    "$/h": Formula(MONEY, "$/h", "GPUs * price", ""),
    "$ per million output tokens": Formula(MONEY, "$", "$/h / (output tokens/s * 3600) * 1e6", "definition"),
    "ISL": Formula(CONVERSATIONS, "tokens, mean over turns", "mean over t = 1..T of s + t*n + (t-1)*o", "--isl (s + n, the first prompt), --prefix-shared (s), --osl (o), --turns (T)"),
    "prompt tokens in cache": Formula(CONVERSATIONS, "of all", "sum of E(t) / sum of prompts, E(1) = s, E(t) = s + k*(H(t) - s), H(t) = held(t-1)/R + (1 - 1/R)*H(t-1), in whole blocks", "the last earlier turn on the same of R caches, each picked with 1/R; R = 1 under affinity"),
}  # fmt: skip


def _derived(what: str, value: float | None, inputs: str, **own: str) -> Explanation:
    """The derivation of a figure from the values in `inputs`; `own` adds or replaces parts of its formula."""
    known = FORMULAS[what]._replace(**own)
    return Explanation(what, value or 0.0, known.unit, "derived", known.formula, inputs, known.source, known.about)


def of_answer(best: Answer, outcome: Outcome, figures: Figures) -> tuple[Explanation, ...]:
    """The derivation of each figure of an answer of one pool, without its error bands."""
    replica = best.pool.replica
    return (
        *_of_deployment(best, outcome.question, figures.load),
        *of_memory(figures.memory, replica),
        *_of_latency(best, outcome.question, figures),
        *_of_money(best, outcome.question, figures),
        *_of_conversations(best.pool),
    )


def of_memory(m: MemoryUse, replica: Replica) -> Iterator[Explanation]:
    """Yield the derivation of each part of one GPU's memory in a replica."""
    settings = replica.settings
    yield _derived("weights", m.weights_gib, "matrices and formats of the model's config")
    by = settings.forward_activation
    yield _derived(
        "activation",
        m.activation_gib,
        f"tokens = max_num_batched_tokens = {settings.max_num_batched_tokens:,}, rows = min(max_num_seqs "
        f"{settings.max_num_seqs:,}, tokens), sampler_bytes = {settings.sampler_bytes_per_logit}, "
        f"a = {by.per_hidden_bytes}, b = {by.per_intermediate_bytes}",
    )
    if not m.sequence_gib:  # an encoder keeps no cache
        return
    yield _pool(m, settings, replica.service.serving)
    yield _derived(
        "max concurrency",
        m.max_concurrency,
        f"KV cache {m.kv_cache_gib:.2f} GiB, one sequence of {m.max_model_len:,} tokens {m.sequence_gib:.4f} GiB, "
        f"{m.kv_bytes_per_token:,.0f} bytes a token ({cache_format(replica).upper()}), block {m.block_tokens} tokens",
    )


def _pool(m: MemoryUse, settings: EngineSettings, serving: Serving) -> Explanation:
    """The derivation of the cache: as stated, or by the rule of the engine, less a pool of states and a stated most."""
    if serving.kv_cache_bytes is not None:
        return _derived(
            "KV cache", m.kv_cache_gib, "", formula="as stated, at most what the card has", source=CACHE_SIZE
        )
    budget_of = {"utilisation": m.visible_gib, "free_before_load": m.visible_gib - m.non_torch_gib}
    whole = budget_of.get(settings.pool_rule)
    fraction = settings.memory_fraction if whole is None else m.budget_gib / whole
    values = f"visible {m.visible_gib:.2f}, memory_fraction {fraction:.4f}, weights {m.weights_gib:.2f}, "
    values += f"activation {m.activation_gib:.2f}, non_torch {m.non_torch_gib:.2f}, graphs {m.cuda_graphs_gib:.2f}"
    states = " - states" if m.state_cache_gib else ""
    if states:
        values += f", states {m.state_cache_gib:.2f}"
    formula = POOL_FORMULAS[settings.pool_rule].format(
        graphs=" - graphs" if settings.graphs_in_budget else "", states=states
    )
    if serving.max_total_tokens is not None:
        formula += f"; at most the {serving.max_total_tokens:,} tokens of --max-total-tokens"
    return _derived("KV cache", m.kv_cache_gib, values, formula=formula)


def _of_deployment(best: Answer, request: Question, load: LoadFigures) -> Iterator[Explanation]:
    from sizing.report.parts.limiting import limit_words  # loads the search, which memory does without

    pool, target = best.pool, request.target
    each = pool.capacity.amount
    if target.amount is not None:
        counted = f"demand {target.amount:,.4g} {target.unit}, headroom {request.rules.headroom:g}, most per replica {each:,.4g}"
        yield _derived("GPUs", best.gpus, f"{counted} {target.unit}, {pool.replica.layout.gpus} GPUs per replica")
    slots = f"{plural(pool.load.slots, 'slot')}, by the {SLOTS[pool.load.slots_bound]}"
    stable = f"at most {target.max_utilisation:g} of the rate beyond which the queue grows"
    yield _derived(
        "most per replica", each, f"{limit_words(pool.capacity.binding)} binds; {slots}; {stable}", unit=target.unit
    )
    if pool.margin != 1.0:
        share = EVEN if target.confidence is None else target.confidence.share
        yield _derived("margin for the confidence asked", pool.margin, f"confidence {share:.0%}")._replace(
            kind="measured"
        )
    yield _derived(
        "concurrency per replica",
        load.concurrency_per_replica,
        f"{best.requests_per_s / pool.count:.4g} requests/s, E2E {best.latency_s('e2e')['mean']:.4g} s",
    )


def _of_latency(best: Answer, request: Question, figures: Figures) -> Iterator[Explanation]:
    latency, prefill, decode = figures.latency, figures.prefill, figures.decode
    pool, service = best.pool, best.pool.load.batching
    simulated = best.run is not None
    source = SIMULATED if simulated else CLOSED
    measured = "mean over the simulated requests; the closed form is " if simulated else ""
    closed = f"closed form {pool.point.ttft_s['mean'] / MILLI:.4g} ms; " if simulated else ""
    waiting = (
        "(rounds + 1) / 2 * prefill of one round, as all requests start together (closed loop)"
        if request.target.concurrency is not None
        else "prefill, slowed by the decodes in its steps + the rest of the running step + the prompts in its step or ahead in the queue"
    )
    yield _derived(
        "TTFT",
        latency.ttft_ms.mean,
        f"{closed}of a lone request {latency.solo_ttft_ms:.4g} ms; a prompt is computed in {service.chunks:.3g} x "
        f"{service.chunk_tokens:,.0f} tokens; prefill takes {pool.point.prefill_share:.3f} of the time",
        formula=measured + waiting,
        source=source,
    )
    yield _derived("prefill step", prefill.total_s / MILLI, _largest(prefill))
    if decode is None:
        return
    tokens = f", a step giving {service.tokens_per_step:.3g} tokens on average" if service.tokens_per_step != 1 else ""
    yield _derived(
        "ITL",
        latency.itl_ms.mean,
        f"closed form {pool.point.itl_s['mean'] / MILLI:.4g} ms, in which a prompt delays the others by "
        f"{_prompt_delay_s(pool) / MILLI:.4g} ms; decode step {decode.total_s / MILLI:.4g} ms at {pool.point.decoding:.4g} sequences of "
        f"{request.service.isl + request.service.osl / 2:,.0f} tokens",
        formula=f"{measured}decode step + decoding requests * the delay by one prompt / (OSL - 1){tokens}",
        source=source,
    )
    yield _derived("decode step", decode.total_s / MILLI, _largest(decode))
    parts = f"TTFT {latency.ttft_ms.mean:.4g} ms, ITL {latency.itl_ms.mean:.4g} ms, OSL {request.service.osl:,}"
    yield _derived("E2E", latency.e2e_ms.mean, parts)


def _prompt_delay_s(pool: Pool) -> float:
    """Seconds that one prompt delays all decoding sequences: (step - decode step) * steps of a request / decoding."""
    decoding = pool.point.decoding
    service = pool.load.batching
    decode_s = float(curves_of.decode_step_s(pool.load.curves, service, decoding))
    step_s = pool.point.itl_s["mean"] * service.tokens_per_step
    return (step_s - decode_s) * float(service.decode_steps) / decoding


def _largest(step: Step) -> str:
    ordered = sorted(step.operations, key=lambda o: -o.seconds)[:MOST_OPERATIONS]
    parts = [f"{o.operation.name} {o.seconds / MILLI:.3g}" for o in ordered]
    return f"largest, in ms: {', '.join(parts)}; host {step.host_s / MILLI:.3g}; MFU {step.mfu:.3f}, MBU {step.mbu:.3f}"


def _of_money(best: Answer, question: Question, figures: Figures) -> Iterator[Explanation]:
    users, cost = figures.users, figures.cost
    if users.stated or not (question.service.model.pooled or question.target.offline):
        yield _derived(
            "daily active users",
            users.daily_active_users,
            f"{best.requests_per_s:.4g} requests/s, {users.active_hours:g} h, {users.requests_per_user_per_day:g} requests, "
            f"peak {users.peak_to_mean:g} x mean",
            source=question.origin.defaults.source,
        )
    if cost.usd_per_hour is not None and cost.usd_per_million_output_tokens is not None:
        gpus = f"{best.gpus} GPUs at {cost.usd_per_gpu_hour:.4g} $ per GPU-hour"
        yield _derived("$/h", cost.usd_per_hour, gpus, source=cost.price_source or "")
        tokens = f"{cost.usd_per_hour:.4g} $/h, {figures.throughput.output_tokens_per_s:,.4g} output tokens/s"
        yield _derived("$ per million output tokens", cost.usd_per_million_output_tokens, tokens)


def _of_conversations(pool: Pool) -> Iterator[Explanation]:
    cached = pool.replica.service.extras.cached
    conversation = cached.conversation
    if conversation is None:
        return
    lengths = (
        f"s = {conversation.shared:,}, n = {conversation.adds:,}, o = {conversation.osl:,}, T = {conversation.turns:,}"
    )
    yield _derived("ISL", conversation.mean_isl, lengths)
    caches = f"R = {cached.finding.engines:,} caches, k = {cached.kept:.3g} kept, blocks of {cached.block:,} tokens"
    yield _derived("prompt tokens in cache", cached.hit, f"{lengths}, {caches}")
