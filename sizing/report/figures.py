"""The figures of one layout at one load, under the names of the contract."""

from __future__ import annotations

from sizing.answers.answer import Answer, Outcome
from sizing.model.attention.terms import Numeric
from sizing.model.memory import MemoryUse
from sizing.replica import step as step_model
from sizing.replica.step import Batch, Step
from sizing.report.documents import Latency, LoadFigures, MemoryFigures, Statistics, Throughput, Utilisation
from sizing.specs.units import MILLI


def load_figures(best: Answer, outcome: Outcome) -> LoadFigures:
    """Return the load: in flight by Little's law, and headroom towards the most that these replicas serve."""
    running = best.requests_per_s / best.pool.count * best.latency_s("e2e")["mean"]
    most = best.pool.capacity.requests_per_s * best.pool.count
    served = best.requests_per_s
    in_flight = outcome.question.target.concurrency
    headroom = (most / served if in_flight is None else best.pool.capacity.amount * best.pool.count / in_flight) - 1
    return LoadFigures(
        requests_per_s=served,
        concurrency=float(in_flight) if in_flight is not None else running * best.pool.count,
        concurrency_per_replica=running if in_flight is None else in_flight / best.pool.count,
        max_requests_per_s=most,
        headroom=max(0.0, headroom),
        headroom_of="requests_per_s" if in_flight is None else "concurrency",
        share_of_max_requests_per_s=min(1.0, served / most) if most else 0.0,
    )


def throughput(best: Answer, outcome: Outcome) -> Throughput:
    """Return throughput per replica, per GPU and in tokens."""
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
    """Return latencies in ms under the load, and alone."""
    decodes = best.pool.load.service.osl > 1
    return Latency(
        ttft_ms=_statistics(best.latency_s("ttft")),
        itl_ms=_statistics(best.latency_s("itl")) if decodes else Statistics(*[None] * 5),
        e2e_ms=_statistics(best.latency_s("e2e")),
        solo_ttft_ms=best.pool.load.solo_ttft_s / MILLI,
        solo_itl_ms=best.pool.load.solo_itl_s / MILLI if decodes else None,
    )


def _statistics(seconds: dict[str, float]) -> Statistics:
    return Statistics(**{key: seconds[key] / MILLI for key in ("mean", "p50", "p90", "p95", "p99")})


def memory_figures(used: MemoryUse, longest: int) -> MemoryFigures:
    """Return the memory of a layout under the names of the contract, and the longest sequence that fits."""
    return MemoryFigures(
        visible_gib=used.visible_gib,
        budget_gib=used.budget_gib,
        weights_gib=used.weights_gib,
        activation_gib=used.activation_gib,
        non_torch_gib=used.non_torch_gib,
        cuda_graphs_gib=used.cuda_graphs_gib,
        cuda_graphs_in_budget=used.graphs_in_budget,
        kv_cache_gib=used.kv_cache_gib,
        kv_bytes_per_token=used.kv_bytes_per_token,
        state_bytes_per_sequence=used.fixed_bytes_per_sequence,
        kv_cache_tokens=used.kv_cache_tokens,
        max_concurrency=used.max_concurrency,
        sequence_gib=used.sequence_gib,
        max_model_len=used.max_model_len,
        max_model_len_that_fits=longest,
        fits=used.fits,
        deficit_gib=used.deficit_gib,
        beside_gib=used.beside_gib,
        shared_prefix_gib=used.shared_prefix_gib,
    )


def phase_steps(best: Answer, outcome: Outcome) -> tuple[Step, Step | None]:
    """Time one prefill step (one prompt's chunk) and one decode step (the batch at this load), exactly."""
    load, request = best.pool.load, outcome.question
    chunk = load.service.chunk_tokens

    def timed(batch: Batch) -> Step:
        return step_model.step(request.service.model, best.pool.replica.layout, load.kernels, batch)

    cached = float(request.service.isl - load.service.isl)
    prefill = timed(
        Batch(prefill_sequences=1.0, prefill_tokens=float(chunk), prefill_prior_tokens=cached, finishing=1.0)
    )
    if request.service.osl <= 1:
        return prefill, None
    micro: Numeric = max(1.0, float(best.pool.point.decoding[0]) / load.service.pp)
    context = request.service.isl + request.service.osl / 2
    return prefill, timed(Batch(decode_sequences=micro, decode_context_tokens=context))


def utilisation(prefill: Step, decode: Step | None) -> Utilisation:
    """Return MFU and MBU of the two kinds of step, each bound by the peak that it comes nearer to."""
    return Utilisation(
        prefill_mfu=prefill.mfu,
        prefill_bound=bound(prefill),
        decode_mbu=decode.mbu if decode else None,
        decode_mfu=decode.mfu if decode else None,
        decode_bound=bound(decode) if decode else None,
    )


def bound(step: Step) -> str:
    """Return which peak a step comes nearer to: `compute` or `memory`."""
    return "compute" if step.mfu > step.mbu else "memory"
