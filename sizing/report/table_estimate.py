"""`llmsize estimate` for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import milliseconds, money, number, percent, plural, stated
from sizing.report import table_bands, table_pools
from sizing.report.documents import Estimate, Users
from sizing.report.parts import bands
from sizing.report.parts.assumptions import NO_ITL_LINE, assumed
from sizing.report.parts.explain import explained
from sizing.report.parts.layouts import layout
from sizing.report.parts.memory import memory_line
from sizing.report.parts.question import lengths, optimised, steps_line
from sizing.report.table_layouts import cheaper, compared, rejected

COMMAND_WIDTH = 56  # of a line of a shell command: with indent and continuation it is below the narrowest terminal


def blocks(document: Estimate) -> Iterator[Block]:
    """Yield the blocks of an estimate: the answer, what was asked, its figures, other layouts, assumptions."""
    if document.disaggregated is not None:
        yield from table_pools.blocks(document.disaggregated, document.inputs["limits"])
    if document.deployment is None:
        yield from _infeasible(document)
    else:
        yield Block(tuple(_answer(document)))
        yield Block(tuple(_asked(document)))
        yield Block(tuple(_figures(document)))
    yield compared(document)
    if document.feasible or len(document.rejected) > 1:
        yield Block(tuple(rejected(document)))
    yield from (block for section in explained(document.explanations) for block in blocks_of(section))
    if document.explanations and document.simulate_command:
        yield Block((Line("Check it with", style="bold"), *shell_lines(document.simulate_command)))
    pools = document.disaggregated
    if document.explanations and pools is not None and pools.simulate_command:
        yield Block((Line("Check the pools with", style="bold"), *shell_lines(pools.simulate_command)))
    yield from blocks_of(assumed(document.assumptions, sources=bool(document.explanations)))


def _answer(document: Estimate) -> Iterator[Line]:
    d, load, latency = document.deployment, document.load, document.latency
    throughput, users, cost = document.throughput, document.users, document.cost
    assert d and load and latency and throughput and users and cost
    price = f"{money(cost.usd_per_hour)}/h" if cost.usd_per_hour is not None else "no price known"
    shape = layout(d)
    yield Line(f"{d.gpus} x {d.gpu} = {plural(d.replicas, 'replica')} x {shape}, {price}", style="bold")
    yield Line(
        f"Serves {_served(document)} ({number(throughput.requests_per_s_per_gpu)} per GPU, "
        f"{number(throughput.requests_per_s_per_replica)} per replica){_headroom(document)}"
    )
    names = ("ttft", "itl", "e2e") if latency.itl_ms.mean is not None else ("ttft", "e2e")
    yield Line(", ".join(_latency(document, name) for name in names))
    if latency.itl_ms.mean is None and document.inputs["limits"]["itl_ms"] is not None:
        yield NO_ITL_LINE
    yield table_bands.of_estimate(document)
    yield from _caution(document)
    if users.stated:
        yield Line(f"{number(users.daily_active_users)} daily active users served ({_habits(users)})")
    yield from cheaper(document)


def _caution(document: Estimate) -> Iterator[Line]:
    """Say what sizing on the worse edges of the bands costs: GPUs of a demand, else requests/s of the GPUs given."""
    c, d, load = document.conservative, document.deployment, document.load
    if c is None or d is None or load is None or c.gpus_without is None or c.requests_per_s_without is None:
        return
    demand = document.inputs["demand"]
    if demand["requests_per_s"] is None and demand["concurrency"] is None:
        said = f"{number(load.requests_per_s)} requests/s instead of {number(c.requests_per_s_without)}"
    else:
        said = f"{plural(d.gpus, 'GPU')} instead of {c.gpus_without:,} ({c.extra_gpus:+,})"
    # Bands of latencies stand beside them only where published runs were like this one.
    of = "" if any(path.startswith("latency.") for path in document.bands) else " of plain serving"
    yield Line(f"Conservative: {said}, sized on the worse edges of the error bands{of}")


def shell_lines(command: str) -> Iterator[Line]:
    """Yield a command in lines that a shell takes as one when they are pasted, each short enough not to be folded."""
    parts: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):  # a value stays on the line of its option
        if word.startswith("-") or not parts:
            parts.append(word)
        else:
            parts[-1] += f" {word}"
    text = parts[0]
    for part in parts[1:]:
        if len(text) + 1 + len(part) > COMMAND_WIDTH:
            yield Line(f"  {text} \\")
            text = f"  {part}"
        else:
            text = f"{text} {part}"
    yield Line(f"  {text}")


def _served(document: Estimate) -> str:
    """Write what is served: what the demand counts comes first, and that it is the most where nothing was demanded."""
    i, load = document.inputs, document.load
    assert load
    rate = f"{number(load.requests_per_s)} requests/s"
    if load.headroom_of == "concurrency":
        return f"{number(load.concurrency)} requests in flight: {rate}"
    return rate if i["demand"]["requests_per_s"] is not None else f"at most {rate}"


def _headroom(document: Estimate) -> str:
    """Write the growth left, of what the demand counts; nothing where the load is the most already."""
    i, load = document.inputs, document.load
    assert load
    demand = i["demand"]
    if demand["requests_per_s"] is None and demand["concurrency"] is None:
        return ""
    of = " in concurrency" if load.headroom_of == "concurrency" else ""
    asked = f" ({percent(i['headroom'])} asked)" if i["headroom"] else ""
    return f", {percent(load.headroom)} headroom{of}{asked}"


def _habits(users: Users) -> str:
    return (
        f"{users.requests_per_user_per_day:g} requests each a day, {users.active_hours:g} h window, "
        f"peak {stated(users.peak_to_mean)} x mean"
    )


def _latency(document: Estimate, name: str) -> str:
    """Write the mean of a latency and, where it is limited, the statistic that the limit bounds."""
    statistics = getattr(document.latency, f"{name}_ms")
    mean = f"{name.upper()} {milliseconds(statistics.mean)}"
    limit = document.inputs["limits"][f"{name}_ms"]
    if limit is None:
        return mean
    bound = f"limit {milliseconds(limit['ms'])}"
    if limit["statistic"] != "mean":
        bound = f"{limit['statistic']} {milliseconds(getattr(statistics, limit['statistic']))}, {bound}"
    return f"{mean} ({bound})"


def _asked(document: Estimate) -> Iterator[Line]:
    """The six labels (model, precision, ISL, OSL, concurrency, TP), the engine, and what names were matched."""
    i, load, d = document.inputs, document.load, document.deployment
    assert load and d
    yield Line(
        f"{i['model']}, {i['weight_precision'].upper()} weights, {i['kv_precision'].upper()} KV cache",
        "Model",
    )
    in_flight = f"concurrency {number(load.concurrency)} in flight"
    if d.replicas > 1:
        in_flight += f", {number(load.concurrency_per_replica)} a replica"
    yield Line(f"{lengths(i)}, {in_flight}", "Workload")
    demanded = steps_line(i["demand"])
    if demanded is not None:
        yield demanded
    nodes = f", a replica over {d.nodes_per_replica} nodes" if d.nodes_per_replica > 1 else ""
    yield Line(f"{i['engine_title']} {i['engine_version']}, {layout(d)}{nodes}", "Engine")
    yield from optimised(i)
    yield from _idle(document)
    if i["gpu_asked"]:
        asked = ", ".join(f"{asked!r} is {known}" for known, asked in i["gpu_asked"].items())
        yield Line(asked, "Matched", style="dim")


def _idle(document: Estimate) -> Iterator[Line]:
    """Say how many conversations wait for their next turn, and whether caches have room for them."""
    idle, talk = document.idle_conversations, document.inputs.get("conversation")
    if idle is None or talk is None:
        return
    text = f"{number(idle.needed)} conversations to keep between turns on each replica, room for {number(idle.room)}"
    if idle.histories_kept < 1:
        text += (
            f": the hit rate of a large enough cache cannot hold, {percent(idle.histories_kept)} of turns are taken to find "
            "their history"
        )
    yield Line(text, "Idle caches")


def _figures(document: Estimate) -> Iterator[Line]:
    m, u, latency = document.memory, document.utilisation, document.latency
    throughput, cost = document.throughput, document.cost
    assert m and u and throughput and cost and latency
    yield memory_line(m)
    yield Line(
        f"{m.kv_cache_tokens:,} tokens a replica, {number(m.max_concurrency)} sequences of {m.max_model_len:,} tokens; "
        f"longest that fits {m.max_model_len_that_fits:,}",
        "Cache holds",
    )
    yield bands.memory_words(document.bands)._replace(label="Memory band")
    decode = "no decode (OSL 1)" if document.inputs["osl"] else "no decode"
    if u.decode_mbu is not None:
        decode = f"decode {u.decode_bound}-bound, MBU {percent(u.decode_mbu)}, MFU {percent(u.decode_mfu)}"
    yield Line(f"prefill {u.prefill_bound}-bound, MFU {percent(u.prefill_mfu)}; {decode}", "Bound by")
    alone = f"TTFT {milliseconds(latency.solo_ttft_ms)}"
    if latency.solo_itl_ms is not None:
        alone += f", ITL {milliseconds(latency.solo_itl_ms)}"
    yield Line(alone, "Alone")
    spread = [
        f"{name} p50 {milliseconds(s.p50)}, p95 {milliseconds(s.p95)}, p99 {milliseconds(s.p99)}"
        for name, s in (("TTFT", latency.ttft_ms), ("ITL", latency.itl_ms))
        if s.p50 is not None
    ]
    yield Line("; ".join(spread), "Percentiles")
    tokens = (
        f"{number(throughput.output_tokens_per_s)} output tokens/s ({number(throughput.output_tokens_per_s_per_gpu)} per "
        f"GPU), {number(throughput.total_tokens_per_s)} with prompts"
    )
    of, kwh, each = "output", cost.kwh_per_million_output_tokens, cost.usd_per_million_output_tokens
    if not document.inputs["osl"]:
        tokens = f"{number(throughput.input_tokens_per_s)} input tokens/s"
        of, kwh, each = "input", cost.kwh_per_million_input_tokens, cost.usd_per_million_input_tokens
    yield Line(tokens, "Throughput")
    energy = f"{number(cost.power_w)} W TDP, {number(kwh)} kWh per million {of} tokens"
    if each is not None:
        usd = f"{money(each)} per million {of} tokens at this rate around the clock"
        if cost.usd_per_million_output_tokens_mean_load is not None:
            usd += f", {money(cost.usd_per_million_output_tokens_mean_load)} at the mean load of the users' day"
        energy = f"{usd}; {energy}"
    yield Line(energy, "Cost")
    if cost.usd_per_gpu_hour is not None:
        yield Line(f"{money(cost.usd_per_gpu_hour)} per GPU-hour: {cost.price_source}", "Price")
    users = document.users
    if users is not None and not users.stated and document.inputs["mode"] != "offline":
        yield Line(
            f"this rate would be that of {number(users.daily_active_users)} daily active users ({_habits(users)})",
            "Users",
        )
    yield Line(document.limiting.detail, "What limits it")
    s = document.simulation
    if s is None:
        yield Line("no: latencies are the closed form's (--no-verify)", "Simulated")
    else:
        preempted = f", {plural(s.preemptions, 'preemption')}" if s.preemptions else ""
        yield Line(
            f"{s.requests:,} requests of one replica: of those in flight {number(s.batch_mean)} in the running batch and "
            f"{number(s.queue_mean)} queued on average, cache {percent(s.kv_utilisation_mean)} full{preempted}; latencies "
            "and percentiles are from it",
            "Simulated",
        )


def _infeasible(document: Estimate) -> Iterator[Block]:
    i, limiting = document.inputs, document.limiting
    yield Block((Line("Infeasible: no layout meets the demand within the limits", style="bold"),))
    yield Block(
        (
            Line(f"{i['model']}, {i['weight_precision'].upper()} weights", "Model"),
            Line(f"ISL {i['isl']:,}, OSL {i['osl']:,}", "Workload"),
            Line(f"{i['engine_title']} {i['engine_version']}", "Engine"),
            *optimised(i),
        )
    )
    lines = [Line(limiting.detail, "Nearest")]
    if document.memory is not None:
        lines.append(memory_line(document.memory))
    helps = limiting.suggestions or ("no single change that was tried makes it feasible",)
    lines += [Line(text, "What would help" if index == 0 else " ") for index, text in enumerate(helps)]
    yield Block(tuple(lines))
