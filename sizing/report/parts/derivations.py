"""The derivation of figures: formula, values, source, by the rows of explanations.csv."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.answers.answer import Answer, Outcome, Pool
from sizing.catalog import shelf
from sizing.formats.view import Explanation
from sizing.model.memory import MemoryUse
from sizing.question.question import Question
from sizing.replica import curves as curves_of
from sizing.replica.replica import Replica, cache_format
from sizing.replica.step import Step
from sizing.report.parts.figures import Figures, LoadFigures
from sizing.report.parts.sentences import derived
from sizing.specs.bands import EVEN
from sizing.specs.units import MILLI
from sizing.specs.workload import Defaults

SLOTS = {"kv_cache": "KV cache", "max_num_seqs": "engine's max_num_seqs"}
MOST_OPERATIONS = 4  # the longest operations of a step


def of_answer(best: Answer, outcome: Outcome, figures: Figures) -> tuple[Explanation, ...]:
    """The derivation of each figure of an answer of one pool, without its error bands."""
    return (
        *_of_deployment(best, outcome.question, figures.load),
        *of_memory(figures.memory, best.pool.replica),
        *_of_latency(best, outcome.question, figures),
        *_of_money(best, outcome.question, figures),
        *_of_conversations(best.pool),
    )


def of_memory(m: MemoryUse, replica: Replica) -> Iterator[Explanation]:
    """Yield the derivation of each part of one GPU's memory in a replica."""
    settings, serving = replica.settings, replica.service.serving
    yield derived("weights", m.weights_gib)
    yield derived("activation", m.activation_gib, settings)
    if not m.sequence_gib:  # an encoder keeps no cache
        return
    if serving.kv_cache_bytes is not None:
        yield derived("stated cache", m.kv_cache_gib)
    else:
        budget_of = {"utilisation": m.visible_gib, "free_before_load": m.visible_gib - m.non_torch_gib}
        whole = budget_of.get(settings.pool_rule)
        fraction = settings.memory_fraction if whole is None else m.budget_gib / whole
        also = {"fraction": fraction, "graphs": settings.graphs_in_budget, "most": serving.max_total_tokens}
        key = f"cache by {settings.pool_rule}"
        yield derived(key, m.kv_cache_gib, m, states=m.state_cache_gib, **also)
    yield derived("max concurrency", m.max_concurrency, m, format=cache_format(replica))


def _of_deployment(best: Answer, question: Question, load: LoadFigures) -> Iterator[Explanation]:
    from sizing.report.parts.limits import limit_words  # loads the search, which memory does without

    pool, binding = best.pool, limit_words(best.pool.capacity.binding)
    each = pool.capacity.amount
    if question.target.amount is not None:
        yield derived("GPUs", best.gpus, question, each=each, gpus=pool.replica.layout.gpus)
    share = None if question.target.offline else question.target.max_utilisation
    of = SLOTS[pool.timed.slots_bound]
    yield derived("most per replica", each, question, pool.timed, binding=binding, of=of, share=share)
    if pool.margin != 1.0:
        asked = question.target.confidence
        yield derived("margin", pool.margin, share=EVEN if asked is None else asked)
    rate, e2e_s = best.requests_per_s / pool.count, best.latency_s("e2e")["mean"]
    yield derived("concurrency", load.concurrency_per_replica, rate=rate, e2e_s=e2e_s)


def _of_latency(best: Answer, question: Question, figures: Figures) -> Iterator[Explanation]:
    latency, decode, service = figures.latency, figures.decode, question.service
    pool, batching, simulated = best.pool, best.pool.timed.batching, best.run is not None
    point, closed = pool.point, question.target.concurrency is not None
    own = {"simulated": simulated, "closed": closed, "ms": point.ttft_s["mean"] / MILLI}
    yield derived("TTFT", latency.ttft_ms.mean, latency, batching, point, **own)
    yield _of_step("prefill step", figures.prefill)
    if decode is None:
        return
    own = {
        "ms": point.itl_s["mean"] / MILLI,
        "delay_ms": _prompt_delay_s(pool) / MILLI,
        "step_ms": decode.total_s / MILLI,
    }
    many, tokens = batching.tokens_per_step != 1, service.isl + service.osl / 2
    sources = batching, point
    yield derived("ITL", latency.itl_ms.mean, *sources, simulated=simulated, several=many, tokens=tokens, **own)
    yield _of_step("decode step", decode)
    yield derived("E2E", latency.e2e_ms.mean, latency, service)


def _prompt_delay_s(pool: Pool) -> float:
    """Seconds that one prompt delays all decoding sequences: (step - decode step) * steps of a request / decoding."""
    decoding = pool.point.decoding
    service = pool.timed.batching
    decode_s = float(curves_of.decode_step_s(pool.timed.curves, service, decoding))
    step_s = pool.point.itl_s["mean"] * service.tokens_per_step
    return (step_s - decode_s) * float(service.decode_steps) / decoding


def _of_step(key: str, step: Step) -> Explanation:
    ordered = sorted(step.operations, key=lambda o: -o.seconds)[:MOST_OPERATIONS]
    longest = [f"{o.operation.name} {o.seconds / MILLI:.3g}" for o in ordered]
    return derived(key, step.total_s / MILLI, step, largest=longest, host_ms=step.host_s / MILLI)


def _of_money(best: Answer, question: Question, figures: Figures) -> Iterator[Explanation]:
    users, cost = figures.users, figures.cost
    if users.stated or not (question.service.model.pooled or question.target.offline):
        yield derived("users", users.daily_active_users, users, shelf.only(Defaults), rate=best.requests_per_s)
    if cost.usd_per_hour is not None and cost.usd_per_million_output_tokens is not None:
        yield derived("$/h", cost.usd_per_hour, cost, gpus=best.gpus, source=cost.price_source or "")
        yield derived("$ per million", cost.usd_per_million_output_tokens, cost, figures.throughput)


def _of_conversations(pool: Pool) -> Iterator[Explanation]:
    cached = pool.replica.service.extras.cached
    if (talk := cached.conversation) is not None:
        yield derived("ISL", talk.mean_isl, talk)
        yield derived("tokens in cache", cached.hit, talk, cached, engines=cached.finding.engines)
