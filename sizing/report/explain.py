"""How each number of an estimate came about: formula, values put in, where those are from."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.answers.answer import Answer, Outcome
from sizing.formats.view import Explanation
from sizing.replica import batching
from sizing.replica.step import Step
from sizing.report.documents import Estimate
from sizing.report.parts.explain import of_memory
from sizing.specs.bands import AS_PREDICTED
from sizing.specs.units import MILLI


def with_explanations(
    document: Estimate, best: Answer, outcome: Outcome, prefill: Step, decode: Step | None
) -> Estimate:
    """Return the document with an explanation for each of its numbers."""
    memory = document.memory
    assert memory is not None  # a feasible document has one
    found = (
        *_of_deployment(document, best, outcome),
        *of_memory(memory, best.pool.replica.settings, best.pool.replica.plan.kv_format),
        *_of_latency(document, best, outcome, prefill, decode),
        *_of_money(document, best, outcome),
    )
    return document._replace(explanations=found)


def _of_deployment(document: Estimate, best: Answer, outcome: Outcome) -> Iterator[Explanation]:
    request, load = outcome.question, document.load
    assert load is not None
    wanted = request.target.concurrency or request.target.requests_per_s
    unit = "in flight" if request.target.concurrency else "requests/s"
    if wanted is not None:
        yield Explanation(
            "GPUs", best.gpus, "", "derived",
            "ceil(demand * (1 + headroom) / most per replica) * GPUs per replica",
            f"demand {wanted:,.4g} {unit}, headroom {request.rules.headroom:g}, most per replica "
            f"{best.pool.capacity.amount:,.4g} {unit}, {best.pool.replica.layout.gpus} GPUs per replica",
            "search over layouts",
        )  # fmt: skip
    yield Explanation(
        "most per replica", best.pool.capacity.amount, unit, "derived",
        "highest load at which every limit holds, slots suffice and utilisation stays stable",
        f"binding: {best.pool.capacity.binding}; slots {best.pool.load.slots} ({best.pool.load.slots_bound}); "
        f"utilisation <= {request.target.max_utilisation:g} of the highest stable rate",
        "closed form of in-flight batching",
    )  # fmt: skip
    if best.pool.edge != AS_PREDICTED:
        yield Explanation(
            "rate counted on", best.pool.edge.throughput, "of the predicted", "measured",
            "conservative: limits / high, highest stable rate * low of the error bands over all loads, none better than 1",
            ", ".join(f"{name} {factor:g}" for name, factor in best.pool.edge._asdict().items()),
            "published measurements over predictions",
        )  # fmt: skip
    yield Explanation(
        "concurrency per replica", load.concurrency_per_replica, "requests in flight", "derived",
        "Little's law: requests/s * E2E; in flight are those in the front end, queued and running",
        f"{best.requests_per_s / best.pool.count:.4g} requests/s, E2E {best.latency_s('e2e')['mean']:.4g} s",
        "Little (1961)",
    )  # fmt: skip


def _of_latency(
    document: Estimate, best: Answer, outcome: Outcome, prefill: Step, decode: Step | None
) -> Iterator[Explanation]:
    latency, request, service = document.latency, outcome.question, best.pool.load.batching
    assert latency is not None
    chunks = service.chunks
    simulated = best.run is not None
    source = "simulation of one replica" if simulated else "closed form of in-flight batching"
    closed = f"closed form {best.pool.point.ttft_s['mean'] / MILLI:.4g} ms; " if simulated else ""
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
        f"{best.pool.point.prefill_share:.3f} of the time",
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
        f"closed form {best.pool.point.itl_s['mean'] / MILLI:.4g} ms, so a prompt delays the others by "
        f"{_prompt_delay_s(best) / MILLI:.4g} ms; decode step {decode.total_s / MILLI:.4g} ms at {best.pool.point.decoding:.4g} sequences of "
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


def _prompt_delay_s(best: Answer) -> float:
    """Seconds by which one prompt delays all that decode: (step - decode step) * steps of a request / decoding."""
    decoding = best.pool.point.decoding
    service = best.pool.load.batching
    decode_s = float(batching.decode_step_s(best.pool.load.curves, service, decoding))
    step_s = best.pool.point.itl_s["mean"] * service.tokens_per_step
    return (step_s - decode_s) * service.decode_steps / decoding


def _largest(step: Step, most: int = 4) -> str:
    ordered = sorted(step.operations, key=lambda o: -o.seconds)[:most]
    parts = [f"{o.operation.name} {o.seconds / MILLI:.3g}" for o in ordered]
    return f"largest, in ms: {', '.join(parts)}; host {step.host_s / MILLI:.3g}; MFU {step.mfu:.3f}, MBU {step.mbu:.3f}"


def _of_money(document: Estimate, best: Answer, outcome: Outcome) -> Iterator[Explanation]:
    users, cost = document.users, document.cost
    assert users is not None
    assert cost is not None
    yield Explanation(
        "daily active users", users.daily_active_users, "users", "derived",
        "requests/s * 3600 * active hours / (requests per user and day * peak to mean)",
        f"{best.requests_per_s:.4g} requests/s, {users.active_hours:g} h, {users.requests_per_user_per_day:g} requests, "
        f"peak {users.peak_to_mean:g} x mean",
        outcome.question.origin.defaults.source,
    )  # fmt: skip
    if cost.usd_per_hour is not None and cost.usd_per_million_output_tokens is not None:
        yield Explanation(
            "$/h", cost.usd_per_hour, "$/h", "derived", "GPUs * price",
            f"{best.gpus} GPUs at {cost.usd_per_gpu_hour:.4g} $ per GPU-hour", cost.price_source or "",
        )  # fmt: skip
        yield Explanation(
            "$ per million output tokens", cost.usd_per_million_output_tokens, "$", "derived",
            "$/h / (output tokens/s * 3600) * 1e6",
            f"{cost.usd_per_hour:.4g} $/h, {best.requests_per_s * outcome.question.service.osl:,.4g} output tokens/s", "definition",
        )  # fmt: skip
