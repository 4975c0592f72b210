"""`llmsize estimate` for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from sizing.report.documents import Alternative, Estimate, RejectedLayout
from sizing.report.footnotes import assumed, explained
from sizing.report.lines import Block, Line, milliseconds, number, percent, plural
from sizing.report.table_memory import memory_line

SHOWN_LAYOUTS = 6  # of one GPU type in the comparison; JSON and CSV have them all
SHOWN_REJECTED = 4


def blocks(document: Estimate) -> Iterator[Block]:
    """Yield the blocks of an estimate: the answer, its figures, other layouts, assumptions."""
    if document.deployment is None:
        yield from _infeasible(document)
    else:
        yield Block(tuple(_answer(document)))
        yield Block(tuple(_labels(document)))
        yield Block(tuple(_figures(document)))
    compared = _compared(document)
    if compared is not None:
        yield compared
    yield Block(tuple(_rejected(document.rejected)))
    yield from explained(document.explanations)
    yield Block(tuple(assumed(document.assumptions)))


def _answer(document: Estimate) -> Iterator[Line]:
    d, load, latency = document.deployment, document.load, document.latency
    throughput, users, cost = document.throughput, document.users, document.cost
    assert d and load and latency and throughput and users and cost
    layout = _layout(d.tp, d.pp, d.ep, d.dp)
    price = f"   {number(cost.usd_per_hour)} $/h" if cost.usd_per_hour is not None else "   no price"
    yield Line(f"{d.gpus} x {d.gpu}  =  {plural(d.replicas, 'replica')} x {layout}{price}", style="bold")
    yield Line(
        f"serves {number(load.requests_per_s)} requests/s ({number(throughput.requests_per_s_per_gpu)} per GPU, "
        f"{number(throughput.requests_per_s_per_replica)} per replica), {percent(load.headroom)} headroom"
    )
    parts = []
    for name, mean, limit_key in (
        ("TTFT", latency.ttft_ms.mean, "ttft_ms"),
        ("ITL", latency.itl_ms.mean, "itl_ms"),
        ("E2E", latency.e2e_ms.mean, "e2e_ms"),
    ):
        parts.append(f"{name} {milliseconds(mean)}{_limit_note(document, name.lower(), limit_key)}")
    yield Line("   ".join(parts))
    yield Line(
        f"{users.daily_active_users:,.0f} daily active users ({users.requests_per_user_per_day:g} requests/user, "
        f"{users.active_hours:g} h window, peak {users.peak_to_mean:g} x mean)"
    )


def _limit_note(document: Estimate, name: str, key: str) -> str:
    limit = document.inputs["limits"][key]
    if limit is None:
        return ""
    if limit["statistic"] == "mean":
        return f" (limit {number(limit['ms'])})"
    value = getattr(getattr(document.latency, f"{name}_ms"), limit["statistic"])
    return f" ({limit['statistic']} {number(value)}, limit {number(limit['ms'])})"


def _layout(tp: int, pp: int, ep: int, dp: int) -> str:
    parts = [f"TP{tp}"] + [f"{name}{n}" for name, n in (("PP", pp), ("EP", ep), ("DP", dp)) if n > 1]
    return " ".join(parts)


def _labels(document: Estimate) -> Iterator[Line]:
    """The six labels (model, precision, ISL, OSL, concurrency, TP), the engine, and what names were matched."""
    i, load = document.inputs, document.load
    assert load is not None
    yield Line(
        f"{i['model']}  {i['weight_precision'].upper()} (KV {i['kv_precision'].upper()})  ISL {i['isl']:,}  "
        f"OSL {i['osl']:,}  concurrency {number(load.concurrency_per_replica)} per replica, "
        f"{number(load.concurrency)} in all  TP{i['serving']['tp']}  {i['engine']} {i['engine_version']}"
    )
    if i["gpu_asked"]:
        asked = ", ".join(f"{asked!r} is {known}" for known, asked in i["gpu_asked"].items())
        yield Line(f"matched: {asked}", style="dim")


def _figures(document: Estimate) -> Iterator[Line]:
    u, throughput, cost, latency = document.utilisation, document.throughput, document.cost, document.latency
    assert document.memory and u and throughput and cost and latency
    yield memory_line(document.memory)
    yield Line(
        f"{number(document.memory.kv_cache_tokens)} tokens of cache a replica, {number(document.memory.max_concurrency)} "
        f"sequences of {document.memory.max_model_len:,} tokens; longest that fits "
        f"{document.memory.max_model_len_that_fits:,}",
        "Cache holds",
    )
    decode = "no decode (OSL 1)"
    if u.decode_mbu is not None:
        decode = f"decode {u.decode_bound}-bound, MBU {percent(u.decode_mbu)}, MFU {percent(u.decode_mfu)}"
    yield Line(f"prefill {u.prefill_bound}-bound, MFU {percent(u.prefill_mfu)}; {decode}", "Bound by")
    yield Line(f"TTFT {milliseconds(latency.solo_ttft_ms)}, ITL {milliseconds(latency.solo_itl_ms)}", "Alone")
    spread = [
        f"{name} p50 {number(s.p50)}, p95 {number(s.p95)}, p99 {number(s.p99)}"
        for name, s in (("TTFT", latency.ttft_ms), ("ITL", latency.itl_ms))
        if s.p50 is not None
    ]
    yield Line(f"{'; '.join(spread)} (ms)", "Percentiles")
    yield Line(
        f"{number(throughput.output_tokens_per_s)} output tokens/s ({number(throughput.output_tokens_per_s_per_gpu)} per "
        f"GPU), {number(throughput.total_tokens_per_s)} with prompts",
        "Throughput",
    )
    money = f"{number(cost.power_w)} W TDP, {number(cost.kwh_per_million_output_tokens)} kWh per million output tokens"
    if cost.usd_per_million_output_tokens is not None:
        money = f"{number(cost.usd_per_million_output_tokens)} $ per million output tokens; {money}"
    yield Line(money, "Cost")
    yield Line(document.limiting.detail, "What limits it")


def _infeasible(document: Estimate) -> Iterator[Block]:
    i, limiting = document.inputs, document.limiting
    lines = [
        Line("infeasible: no layout meets the demand within the limits", style="bold"),
        Line(
            f"{i['model']}  {i['weight_precision'].upper()}  ISL {i['isl']:,}  OSL {i['osl']:,}  "
            f"{i['engine']} {i['engine_version']}"
        ),
        Line(limiting.detail, "Nearest"),
    ]
    helps = limiting.suggestions or ("no single change that was tried makes it feasible",)
    lines += [Line(text, "What would help" if index == 0 else " ") for index, text in enumerate(helps)]
    yield Block(tuple(lines))


def _compared(document: Estimate) -> Block | None:
    """Other layouts that meet the demand: the best few of each GPU type and precision."""
    rows: list[tuple[str, ...]] = []
    several = len(document.inputs["gpu"]) > 1
    shown: dict[tuple[str, str], int] = {}
    most = 1 if several else SHOWN_LAYOUTS
    if document.deployment is not None:
        rows.append(_answer_row(document))
        shown[document.deployment.gpu, document.inputs["weight_precision"]] = 1
    for a in document.alternatives:
        key = (a.gpu, a.weight_precision)
        if shown.get(key, 0) < most + (0 if several else 1):
            shown[key] = shown.get(key, 0) + 1
            rows.append(_row(a))
    if len(rows) < 2:
        return None
    columns = ("GPUs", "GPU", "layout", "weights", "TTFT ms", "ITL ms", "$/h")
    return Block(columns=columns, right=(True, False, False, False, True, True, True), rows=tuple(rows))


def _answer_row(document: Estimate) -> tuple[str, ...]:
    d, latency, cost = document.deployment, document.latency, document.cost
    assert d and latency and cost
    return (
        str(d.gpus),
        d.gpu,
        f"{d.replicas} x {_layout(d.tp, d.pp, d.ep, d.dp)}",
        document.inputs["weight_precision"],
        number(latency.ttft_ms.mean),
        number(latency.itl_ms.mean),
        number(cost.usd_per_hour),
    )


def _row(a: Alternative) -> tuple[str, ...]:
    return (
        str(a.gpus),
        a.gpu,
        f"{a.replicas} x {_layout(a.tp, a.pp, a.ep, a.dp)}",
        a.weight_precision,
        number(a.ttft_ms),
        number(a.itl_ms),
        number(a.usd_per_hour),
    )


def _rejected(rejected: tuple[RejectedLayout, ...]) -> Iterator[Line]:
    """The rejected layouts, those with one reason together; the first few reasons of each GPU type."""
    by_reason = sorted(rejected, key=lambda r: (r.gpu, r.weight_precision))
    shown = 0
    for _, group in groupby(by_reason, key=lambda r: (r.gpu, r.weight_precision)):
        for r in list(group)[:1] if len(rejected) > SHOWN_REJECTED else list(group):
            if shown < SHOWN_REJECTED:
                label = "Not possible" if shown == 0 else " "
                yield Line(
                    f"{r.gpu} {r.weight_precision} {_layout(r.tp, r.pp, r.ep, r.dp)}: {r.detail}", label
                )
                shown += 1
    if len(rejected) > shown:
        yield Line(f"{len(rejected) - shown} more layouts rejected (--json or --format csv lists each)", " ")
