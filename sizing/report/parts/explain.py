"""The derivation of figures: formula, values, source."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.answers.answer import Answer, Outcome, Pool
from sizing.formats.view import Explanation
from sizing.question.question import Question
from sizing.replica import batching
from sizing.replica.step import Step
from sizing.report.parts.figures import Figures, LoadFigures, MemoryFigures
from sizing.specs.bands import EVEN
from sizing.specs.engine import EngineSettings
from sizing.specs.units import MILLI

POOL_FORMULAS = {
    "utilisation": "visible * memory_fraction - weights - activation - non_torch{graphs}",
    "free_before_load": "(visible - non_torch) * memory_fraction - weights; activation and graphs live in the rest",
    "free_after_load": "(visible - weights - activation - non_torch - graphs) * memory_fraction",
}


def of_answer(best: Answer, outcome: Outcome, figures: Figures) -> tuple[Explanation, ...]:
    """The derivation of each figure of an answer of one pool, without its error bands."""
    replica = best.pool.replica
    return (
        *_of_deployment(best, outcome.question, figures.load),
        *of_memory(figures.memory, replica.settings, replica.plan.kv_format),
        *_of_latency(best, outcome.question, figures),
        *_of_money(best, outcome.question, figures),
        *_of_conversations(best.pool),
    )


def of_memory(memory: MemoryFigures, settings: EngineSettings, kv_format: str) -> tuple[Explanation, ...]:
    """The derivation of each part of one GPU's memory."""
    return tuple(_of_memory(memory, settings, kv_format))


def _of_memory(m: MemoryFigures, settings: EngineSettings, kv_format: str) -> Iterator[Explanation]:
    yield Explanation(
        "weights", m.weights_gib, "GiB", "derived",
        "sum over weight matrices of inputs * outputs * bytes of their format, as split over this GPU",
        "matrices and formats of the model's config", "config.json",
    )  # fmt: skip
    yield Explanation(
        "activation", m.activation_gib, "GiB", "derived",
        "max(tokens * (a*hidden + buffers), rows * vocabulary * sampler_bytes + 2*tokens*hidden), or the image encoder's "
        "peak; buffers of the widest layer: b*intermediate/tp, latent attention's or a recurrent state's",
        f"tokens = max_num_batched_tokens = {settings.max_num_batched_tokens:,}, rows = min(max_num_seqs "
        f"{settings.max_num_seqs:,}, tokens), sampler_bytes = {settings.sampler_bytes_per_logit}, "
        f"a = {settings.forward_activation.per_hidden_bytes}, b = {settings.forward_activation.per_intermediate_bytes}",
        "engine profile",
    )  # fmt: skip
    graphs = " - graphs" if settings.graphs_in_budget else " (graphs come on top)"
    yield Explanation(
        "KV cache", m.kv_cache_gib, "GiB", "derived",
        POOL_FORMULAS[settings.pool_rule].format(graphs=graphs),
        f"visible {m.visible_gib:.2f}, memory_fraction {m.budget_gib / m.visible_gib:.3f}, weights {m.weights_gib:.2f}, "
        f"activation {m.activation_gib:.2f}, non_torch {m.non_torch_gib:.2f}, graphs {m.cuda_graphs_gib:.2f}",
        "engine profile, GPU profile",
    )  # fmt: skip
    yield Explanation(
        "max concurrency", m.max_concurrency, "sequences", "derived",
        "(KV cache - reserved blocks) / cache of one sequence of max_model_len tokens, in whole blocks",
        f"KV cache {m.kv_cache_gib:.2f} GiB, one sequence of {m.max_model_len:,} tokens {m.sequence_gib:.4f} GiB, "
        f"{m.kv_bytes_per_token:,.0f} bytes a token ({kv_format}), block {m.block_tokens} tokens",
        "model's config, engine profile",
    )  # fmt: skip


def _of_deployment(best: Answer, request: Question, load: LoadFigures) -> Iterator[Explanation]:
    pool = best.pool
    wanted, unit = request.target.amount, request.target.unit
    if wanted is not None:
        yield Explanation(
            "GPUs", best.gpus, "", "derived",
            "ceil(demand * (1 + headroom) / most per replica) * GPUs per replica",
            f"demand {wanted:,.4g} {unit}, headroom {request.rules.headroom:g}, most per replica "
            f"{pool.capacity.amount:,.4g} {unit}, {pool.replica.layout.gpus} GPUs per replica",
            "search over layouts",
        )  # fmt: skip
    yield Explanation(
        "most per replica", pool.capacity.amount, unit, "derived",
        "highest load at which every limit holds, slots suffice and utilisation stays stable",
        f"binding: {pool.capacity.binding}; slots {pool.load.slots} ({pool.load.slots_bound}); "
        f"utilisation <= {request.target.max_utilisation:g} of the highest stable rate",
        "closed form of in-flight batching",
    )  # fmt: skip
    if pool.margin != 1.0:
        yield Explanation(
            "margin for the confidence asked", pool.margin, "times the demand", "measured",
            "most as predicted / most with latencies and throughput of a published run; the quantile of these over runs",
            f"confidence {EVEN if request.target.confidence is None else request.target.confidence.share:.0%}",
            "published measurements over predictions",
        )  # fmt: skip
    yield Explanation(
        "concurrency per replica", load.concurrency_per_replica, "requests in flight", "derived",
        "Little's law: requests/s * E2E; in flight are those in the front end, queued and running",
        f"{best.requests_per_s / pool.count:.4g} requests/s, E2E {best.latency_s('e2e')['mean']:.4g} s",
        "Little (1961)",
    )  # fmt: skip


def _of_latency(best: Answer, request: Question, figures: Figures) -> Iterator[Explanation]:
    latency, prefill, decode = figures.latency, figures.prefill, figures.decode
    pool, service = best.pool, best.pool.load.batching
    chunks = service.chunks
    simulated = best.run is not None
    source = "simulation of one replica" if simulated else "closed form of in-flight batching"
    closed = f"closed form {pool.point.ttft_s['mean'] / MILLI:.4g} ms; " if simulated else ""
    waiting = (
        "(rounds + 1)/2 * prefill of one round; all requests start together (closed loop)"
        if request.target.concurrency is not None
        else "prefill with the decodes beside it + rest of the step met + prompts that share its step or queue ahead"
    )
    if simulated:
        waiting = f"mean over simulated requests; the closed form is {waiting}"
    yield Explanation(
        "TTFT", latency.ttft_ms.mean or 0.0, "ms", "derived", waiting,
        f"{closed}alone {latency.solo_ttft_ms:.4g} ms; {chunks:.3g} chunks of {service.chunk_tokens:,.0f} tokens; prefill fills "
        f"{pool.point.prefill_share:.3f} of the time",
        source,
    )  # fmt: skip
    yield Explanation(
        "prefill step", prefill.total_s / MILLI, "ms", "derived", "sum of operations, then the host's share",
        _largest(prefill), "llmsize step shows every operation",
    )  # fmt: skip
    if decode is None:
        return
    yield Explanation(
        "ITL", latency.itl_ms.mean or 0.0, "ms", "derived",
        ("mean over simulated requests; the closed form is " if simulated else "")
        + "decode step + decoding * (what a prompt delays them) / (OSL - 1)"
        + (f", a step giving {service.tokens_per_step:.3g} tokens on average" if service.tokens_per_step != 1 else ""),
        f"closed form {pool.point.itl_s['mean'] / MILLI:.4g} ms, so a prompt delays the others by "
        f"{_prompt_delay_s(pool) / MILLI:.4g} ms; decode step {decode.total_s / MILLI:.4g} ms at {pool.point.decoding:.4g} sequences of "
        f"{request.service.isl + request.service.osl / 2:,.0f} tokens",
        source,
    )  # fmt: skip
    yield Explanation(
        "decode step", decode.total_s / MILLI, "ms", "derived", "sum of operations, then the host's share",
        _largest(decode), "llmsize step shows every operation",
    )  # fmt: skip
    yield Explanation(
        "E2E", latency.e2e_ms.mean or 0.0, "ms", "derived", "TTFT + ITL * (OSL - 1)",
        f"TTFT {latency.ttft_ms.mean:.4g} ms, ITL {latency.itl_ms.mean:.4g} ms, OSL {request.service.osl:,}", "definition",
    )  # fmt: skip


def _prompt_delay_s(pool: Pool) -> float:
    """Seconds that one prompt delays all decoding sequences: (step - decode step) * steps of a request / decoding."""
    decoding = pool.point.decoding
    service = pool.load.batching
    decode_s = float(batching.decode_step_s(pool.load.curves, service, decoding))
    step_s = pool.point.itl_s["mean"] * service.tokens_per_step
    return (step_s - decode_s) * service.decode_steps / decoding


def _largest(step: Step, most: int = 4) -> str:
    ordered = sorted(step.operations, key=lambda o: -o.seconds)[:most]
    parts = [f"{o.operation.name} {o.seconds / MILLI:.3g}" for o in ordered]
    return f"largest, in ms: {', '.join(parts)}; host {step.host_s / MILLI:.3g}; MFU {step.mfu:.3f}, MBU {step.mbu:.3f}"


def _of_money(best: Answer, question: Question, figures: Figures) -> Iterator[Explanation]:
    users, cost = figures.users, figures.cost
    yield Explanation(
        "daily active users", users.daily_active_users, "users", "derived",
        "requests/s * 3600 * active hours / (requests per user and day * peak to mean)",
        f"{best.requests_per_s:.4g} requests/s, {users.active_hours:g} h, {users.requests_per_user_per_day:g} requests, "
        f"peak {users.peak_to_mean:g} x mean",
        question.origin.defaults.source,
    )  # fmt: skip
    if cost.usd_per_hour is not None and cost.usd_per_million_output_tokens is not None:
        yield Explanation(
            "$/h", cost.usd_per_hour, "$/h", "derived", "GPUs * price",
            f"{best.gpus} GPUs at {cost.usd_per_gpu_hour:.4g} $ per GPU-hour", cost.price_source or "",
        )  # fmt: skip
        yield Explanation(
            "$ per million output tokens", cost.usd_per_million_output_tokens, "$", "derived",
            "$/h / (output tokens/s * 3600) * 1e6",
            f"{cost.usd_per_hour:.4g} $/h, {figures.throughput.output_tokens_per_s:,.4g} output tokens/s", "definition",
        )  # fmt: skip


def _of_conversations(pool: Pool) -> Iterator[Explanation]:
    cached = pool.replica.service.extras.cached
    conversation = cached.conversation
    if conversation is None:
        return
    lengths = (
        f"s = {conversation.shared:,}, n = {conversation.adds:,}, o = {conversation.osl:,}, T = {conversation.turns:,}"
    )
    yield Explanation(
        "ISL", conversation.mean_isl, "tokens, mean over turns", "derived", "mean over t = 1..T of s + t*n + (t-1)*o", lengths,
        "--isl (s + n, the first prompt), --prefix-shared (s), --osl (o), --turns (T)",
    )  # fmt: skip
    yield Explanation(
        "prompt tokens in cache", cached.hit, "of all", "derived",
        "sum of E(t) / sum of prompts, E(1) = s, E(t) = s + k*(H(t) - s), H(t) = held(t-1)/R + (1 - 1/R)*H(t-1), in whole blocks",
        f"{lengths}, R = {cached.finding.engines:,} caches, k = {cached.kept:.3g} kept, blocks of {cached.block:,} tokens",
        "the last earlier turn on the same of R caches, each picked with 1/R; R = 1 under affinity",
    )  # fmt: skip
