"""The page's tables about the answer: what was asked, figures with their error bands, other layouts, assumptions."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.formats.words import milliseconds, money, number, percent, stated
from sizing.report.documents import Estimate
from sizing.report.documents_report import Report
from sizing.report.html_cells import Cell, Table, capped, columns, figure, words
from sizing.report.parts.assumptions import KINDS
from sizing.report.parts.layouts import layout
from sizing.report.parts.question import lengths, optimisations, turns

AT = "/estimate"
LATENCIES = (("ttft_ms", "TTFT"), ("itl_ms", "ITL"), ("e2e_ms", "E2E"))
STATISTICS = ("mean", "p50", "p95", "p99")
MOST_LAYOUTS, MOST_REJECTED = 12, 20
ABSENT = "–"


def asked(report: Report) -> tuple[tuple[str, str], ...]:
    """Return what was asked, resolved: the six labels, demand, limits and rules."""
    i = report.estimate.inputs
    d = report.estimate.deployment
    found = [
        ("Model", f"{i['model']} ({i['model_id']})"),
        ("Weights, KV cache", f"{i['weight_precision'].upper()}, {i['kv_precision'].upper()}"),
        ("Lengths", _lengths(report.estimate)),
        ("Demand", _demand(report.estimate)),
        ("Limits", _limits(report.estimate)),
        ("Engine", f"{i['engine_title']} {i['engine_version']}"),
        ("GPU types considered", ", ".join(i["gpus_considered"])),
        (
            "Rules",
            f"{i['mode']}, objective {i['objective']}, at most {percent(i['max_utilisation'])} of the stable rate",
        ),
    ]
    if optimised := optimisations(i):
        found.append(("Optimisations", optimised))
    if said := turns(i):
        found.append(("Turns", said))
    if d is not None:
        found.insert(6, ("Layout of a replica", layout(d)))
    return tuple(found)


def _lengths(estimate: Estimate) -> str:
    i = estimate.inputs
    text = f"{lengths(i)}{' tokens' if i['osl'] else ''}"
    return (
        text
        if (i["isl_max"], i["osl_max"]) == (i["isl"], i["osl"])
        else (f"{text} on average, {i['isl_max']:,} and {i['osl_max']:,} at the longest")
    )


def _demand(estimate: Estimate) -> str:
    demand, budget = estimate.inputs["demand"], estimate.inputs["gpu_budget"]
    said = [
        f"{number(demand[key])} {noun}"
        for key, noun in (
            ("daily_active_users", "daily active users"),
            ("concurrency", "requests in flight"),
            ("requests_per_s", "requests/s at the peak"),
        )
        if demand[key] is not None
    ]
    if budget is not None:
        said.append(f"at most {budget:,} GPUs")
    return ", ".join(said) or "as much as can be served"


def _limits(estimate: Estimate) -> str:
    limits = estimate.inputs["limits"]
    found = [
        f"{name} {milliseconds(limits[key]['ms'])} ({limits[key]['statistic']})"
        for key, name in LATENCIES
        if limits[key] is not None
    ]
    return ", ".join(found) or "none"


def latency(report: Report) -> Table | None:
    """Return latencies with their statistics, limits and error bands; None where there is no answer."""
    estimate = report.estimate
    if estimate.latency is None:
        return None
    rows = []
    for key, name in LATENCIES:
        statistics = [figure(report, f"{AT}/latency/{key}/{one}", milliseconds) for one in STATISTICS]
        limit = words("none")
        if estimate.inputs["limits"][key] is not None:
            pointer = f"{AT}/inputs/limits/{key}/ms"
            limit = figure(report, pointer, milliseconds)
            limit = limit._replace(text=f"{limit.text} ({estimate.inputs['limits'][key]['statistic']})")
        rows.append((words(name), *statistics, limit, *_band(report, f"latency.{key}.mean")))
    heads = columns("latency", *STATISTICS, "limit", "band of the mean, low", "high", "runs")
    return Table("Latency under load, with the range of 8 in 10 published runs of the kind", heads, tuple(rows))


def _band(report: Report, path: str) -> tuple[Cell, Cell, Cell]:
    if path not in report.estimate.bands:
        return words(ABSENT), words(ABSENT), words("0")
    pointer = f"{AT}/bands/{path}"
    low, high = (figure(report, f"{pointer}/{end}", milliseconds) for end in ("low", "high"))
    return low, high, figure(report, f"{pointer}/n", "{:,}".format)


def figures(report: Report) -> Table | None:
    """Return load, throughput, utilisation and cost; None where there is no answer."""
    estimate = report.estimate
    if estimate.deployment is None:
        return None
    shown = OF_INPUTS if not estimate.inputs["osl"] else FIGURES
    rows = tuple(
        (words(name), figure(report, AT + pointer, write), words(unit)) for name, pointer, write, unit in shown
    )
    return Table("Load, throughput, cost", columns("figure", "value", "unit", words_last=1), rows)


FIGURES = (
    ("GPUs", "/deployment/gpus", "{:,}".format, "GPUs"),
    ("replicas", "/deployment/replicas", "{:,}".format, "replicas"),
    ("rate served", "/load/requests_per_s", number, "requests/s"),
    ("most within the limits", "/load/max_requests_per_s", number, "requests/s"),
    ("headroom", "/load/headroom", percent, "of the demand"),
    ("in flight", "/load/concurrency", number, "requests"),
    ("rate of a GPU", "/throughput/requests_per_s_per_gpu", number, "requests/s"),
    ("output", "/throughput/output_tokens_per_s", number, "tokens/s"),
    ("output with prompts", "/throughput/total_tokens_per_s", number, "tokens/s"),
    ("MFU of a prefill step", "/utilisation/prefill_mfu", percent, "of the dense peak"),
    ("MBU of a decode step", "/utilisation/decode_mbu", percent, "of the bandwidth"),
    ("price", "/cost/usd_per_hour", money, "an hour"),
    ("price of a GPU", "/cost/usd_per_gpu_hour", money, "an hour"),
    ("price of output", "/cost/usd_per_million_output_tokens", money, "a million tokens"),
    ("power", "/cost/power_w", number, "W (TDP)"),
    ("energy of output", "/cost/kwh_per_million_output_tokens", number, "kWh a million tokens"),
)
# Of a task that gives no tokens.
OF_INPUTS = tuple(
    (name.replace("output", "input"), pointer.replace("output_tokens", "input_tokens"), write, unit)
    for name, pointer, write, unit in FIGURES
    if "total_tokens" not in pointer and "decode" not in pointer
)


def sensitivity(report: Report) -> Table:
    """Return what each changed input makes of the answer."""
    rows = []
    for index, one in enumerate(report.sensitivity):
        at = f"/sensitivity/{index}"
        to = figure(report, f"{at}/value", milliseconds if one.unit == "ms" else number)
        if one.unit != "ms":
            to = to._replace(text=f"{to.text} {one.unit}")
        share = Cell(f"{one.share * 100:+.0f} %", f"{at}/share")
        if not one.feasible:
            rows.append((words(one.what), share, to, words("none"), *[words(ABSENT)] * 3, words(one.reason or "")))
            continue
        rows.append(
            (
                words(one.what),
                share,
                to,
                figure(report, f"{at}/gpus", "{:,}".format),
                figure(report, f"{at}/extra_gpus", "{:+,}".format),
                figure(report, f"{at}/requests_per_s", number),
                figure(report, f"{at}/usd_per_hour", money),
                words(f"{one.gpu}, {(one.weight_precision or '').upper()}, {one.layout}"),
            )
        )
    how = "each simulated like the answer" if report.simulated else "closed form, not simulated, like the answer"
    heads = columns("input", "change", "to", "GPUs", "more GPUs", "requests/s", "$/h", "then", words_last=1)
    return Table(f"One input changed at a time ({how})", heads, tuple(rows))


def alternatives(report: Report) -> Table:
    """Return the other layouts that meet the demand, best first."""
    rows = [
        (
            words(f"{one.gpu}, {one.weight_precision.upper()}"),
            words(f"{one.replicas} x {layout(one)}"),
            *(
                figure(report, f"{AT}/alternatives/{index}/{name}", write)
                for name, write in (
                    ("gpus", "{:,}".format),
                    ("requests_per_s_per_gpu", number),
                    ("ttft_ms", milliseconds),
                    ("itl_ms", milliseconds),
                    ("usd_per_hour", money),
                    ("power_w", number),
                )
            ),
        )
        for index, one in enumerate(report.estimate.alternatives)
    ]
    shown, note = capped(rows, MOST_LAYOUTS, "layouts")
    heads = columns("GPU", "layout", "GPUs", "requests/s a GPU", "TTFT", "ITL", "$/h", "W", words_first=2)
    return Table("Other layouts that meet the demand (closed form, means)", heads, shown, note)


def rejected(report: Report) -> Table:
    """Return the layouts that do not, each with its reason."""
    rows = [
        (
            words(f"{one.gpu}, {one.weight_precision.upper()}"),
            words(layout(one)),
            words(one.reason),
            words(one.detail),
        )
        for one in report.estimate.rejected
    ]
    shown, note = capped(rows, MOST_REJECTED, "layouts")
    heads = columns("GPU", "layout", "reason", "detail", words_first=4)
    return Table("Layouts that do not", heads, shown, note)


def sources(report: Report) -> dict[str, int]:
    """Return the sources of the assumptions, numbered in the order of their table."""
    found = [one for kind in KINDS for one in report.estimate.assumptions if one.kind == kind]
    return {text: index for index, text in enumerate(dict.fromkeys(one.source for one in found if one.source), 1)}


def assumptions(report: Report) -> Table:
    """Return what the answer rests on, the least sure first, each with the number of its source."""
    rows = tuple(_assumptions(report))
    return Table("Inputs by how they are known", columns("known", "what", "value", "source", words_first=4), rows)


def _assumptions(report: Report) -> Iterator[tuple[Cell, ...]]:
    found, numbers = report.estimate.assumptions, sources(report)
    for kind in KINDS:
        for index, one in enumerate(found):
            if one.kind == kind:
                value = f"{stated(one.value)} {one.unit}".rstrip()
                pointer = f"{AT}/assumptions/{index}/value" if not isinstance(one.value, str) else None
                at = numbers.get(one.source)
                source = words("") if at is None else Cell(f"[{at}]", target=f"source-{at}")
                yield words(kind), words(one.what), Cell(value, pointer), source
