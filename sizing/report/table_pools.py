"""A disaggregated deployment for the terminal, before the aggregated one that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sizing.formats.text import Block
from sizing.formats.view import Line
from sizing.formats.words import milliseconds, money, number, percent, plural
from sizing.report.documents_pools import Disaggregated, PoolFigures
from sizing.report.parts.figures import Statistics
from sizing.report.parts.limiting import limit_words
from sizing.report.parts.pools import pool_words, transfer_words


def blocks(found: Disaggregated, limits: dict[str, Any]) -> Iterator[Block]:
    """Yield the pools with their figures and the comparison, then the heading of the aggregated answer."""
    if found.prefill is None or found.decode is None:
        yield Block((Line("Infeasible: no pools for prefill and decode meet the demand within the limits", style="bold"), Line(found.why, "Nearest")))  # fmt: skip
    else:
        yield Block(tuple(_answer(found, limits)))
        yield Block(tuple(_figures(found)))
    yield Block((Line("Serving as one:", style="bold"),))


def _answer(found: Disaggregated, limits: dict[str, Any]) -> Iterator[Line]:
    prefill, decode = found.prefill, found.decode
    assert prefill and decode and found.ttft_ms and found.itl_ms and found.e2e_ms
    price = f"{money(found.usd_per_hour)}/h" if found.usd_per_hour is not None else "no price known"
    same = prefill.gpu == decode.gpu
    gpus = f"{found.gpus} x {prefill.gpu}" if same else plural(found.gpus or 0, "GPU")
    pools = " + ".join(
        f"{name} {pool_words(pool, named=not same)}" for name, pool in (("prefill", prefill), ("decode", decode))
    )
    yield Line(f"{gpus} = {pools}, {price}", style="bold")
    yield Line(
        f"Serves {number(found.requests_per_s)} requests/s ({number(found.requests_per_s_per_gpu)} per GPU); GPUs of prefill to "
        f"those of decode {prefill.gpus} : {decode.gpus}{_nodes(prefill, decode)}"
    )
    spreads = {"ttft": found.ttft_ms, "itl": found.itl_ms, "e2e": found.e2e_ms}
    yield Line(", ".join(_latency(name, spread, limits[f"{name}_ms"]) for name, spread in spreads.items()))
    yield Line(_against(found))


def _nodes(prefill: PoolFigures, decode: PoolFigures) -> str:
    """Say which pool's replicas span several nodes."""
    wide = [
        f"a {name} replica over {pool.nodes_per_replica} nodes"
        for name, pool in (("prefill", prefill), ("decode", decode))
        if pool.nodes_per_replica > 1
    ]
    return f"; {', '.join(wide)}" if wide else ""


def _latency(name: str, spread: Statistics, limit: dict[str, Any] | None) -> str:
    text = f"{name.upper()} {milliseconds(spread.mean)}"
    if limit is None:
        return text
    bound = f"limit {milliseconds(limit['ms'])}"
    if limit["statistic"] != "mean":
        bound = f"{limit['statistic']} {milliseconds(getattr(spread, limit['statistic']))}, {bound}"
    return f"{text} ({bound})"


def _against(found: Disaggregated) -> str:
    """Write the comparison in a sentence."""
    other = found.aggregated
    if other is None:
        return f"Beats serving as one: {found.why}"
    itl = f", ITL {milliseconds(other.itl_ms)}" if other.itl_ms is not None else ""
    beside = f"{plural(other.gpus, 'GPU')}, {number(other.requests_per_s)} requests/s, TTFT {milliseconds(other.ttft_ms)}{itl}"
    verdict = "Beats serving as one" if found.beats_aggregated else "Does not beat serving as one"
    return f"{verdict} ({beside}): {found.why}"


def _figures(found: Disaggregated) -> Iterator[Line]:
    prefill, decode, transfer = found.prefill, found.decode, found.kv_transfer
    assert prefill and decode and transfer
    yield Line(f"{_used(prefill)}; TTFT alone {milliseconds(prefill.solo_ms)}", "Prefill pool")
    yield Line(f"{_used(decode)}; ITL alone {milliseconds(decode.solo_ms)}", "Decode pool")
    yield Line(f"the {found.binding} pool is nearer to its most", "Binds")
    yield Line(f"{milliseconds(found.kv_transfer_ms)} a prompt, in TTFT: {transfer_words(transfer)}", "KV transfer")
    tried = found.sizes_tried
    yield Line("no (--no-verify)" if tried is None else f"both pools, {plural(tried, 'size')} tried", "Simulated")
    yield Line(found.needs, "Needs")


def _used(pool: PoolFigures) -> str:
    return (
        f"at {percent(pool.utilisation)} of its highest rate; within the limits at most {number(pool.most_requests_per_s)} "
        f"requests/s, ended by {limit_words(pool.limit)}"
    )
