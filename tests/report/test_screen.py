"""Laws of the first screen: short, no wider than the terminal, the figures of JSON, a verdict that the exit code says too."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from screens import MOST_LINES, Capture, printed
from test_report import CASES, FEASIBLE, document, document_of, parsed, terminal, widest

from sizing.cli.main import run
from sizing.formats.text import render, render_for
from sizing.formats.view import Assumption, Document, Facts, Line, Rows, Table, in_words
from sizing.formats.words import milliseconds, number, percent, stated
from sizing.model.architecture import Layout
from sizing.report.estimate import sections
from sizing.report.parts import screen
from sizing.report.parts.layouts import Alternative, RejectedLayout, other_types
from sizing.report.parts.limits import at_limit
from sizing.report.parts.question import LimitInMs, is_by_day, limits_in_words
from sizing.report.parts.screen import (
    HABITS,
    KEPT,
    MISSED,
    OBJECTIVES,
    LimitRow,
    assumption_lines,
    first_lines,
    latencies,
)

SCREENS = {
    "memory": (["memory", "-m", "llama-3.1-8b", "-g", "h100-sxm"], 0),
    "memory that is short": (["memory", "-m", "llama-3.1-70b", "-g", "l40s"], 1),
    "compare": (["compare", "chat", "-g", "h100-sxm,l40s", "--no-verify", "--jobs", "1"], 0),
    "many GPU types": (["estimate", "rag", "-g", "h100-sxm,l40s,rtx-3060,t4,b200,a10,mi300x", "--no-verify"], 0),
    "plan": (["plan", "chat", "-g", "h100-sxm", "--no-verify"], 0),
    "plan with growth": (["plan", "chat", "-g", "h100-sxm", "--growth", "50%/year", "--from", "2026-12", "--until", "2027-12", "--spare", "1", "--headroom", "20%", "--lead-time", "12w", "--no-verify"], 0),
    "many optimisations": (["whatif", "rag", "-g", "l40s", "--no-verify"], 0),
    "even odds": (["whatif", "chat", "-g", "mi300x", "--no-verify"], 0),
    "plan that fails": (["plan", "chat", "-g", "l4", "--tp", "1", "--no-verify"], 1),
    "cost": (["cost", "chat", "-g", "h100-sxm", "--own", "hgx-h100", "--cloud", "aws,lambda", "--api", "1.0,3.0", "--no-verify"], 0),
    "whatif": (["whatif", "chat", "-g", "h100-sxm", "--no-verify"], 0),
    "step": (["step", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--decode", "8", "--context", "500"], 0),
    "roofline": (["roofline", "-m", "llama-3.1-70b", "-g", "h100-sxm", "--tp", "4"], 0),
    "workloads": (["workloads"], 0),
    "curve of pools": (["curve", "chat", "-g", "h100-sxm", "--tp", "2", "--disaggregate", "auto", "--no-verify"], 0),
    "simulate": (["simulate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "500", "--osl", "50", "--rps", "2", "--requests", "40"], 0),
    "simulate that misses": (["simulate", "-m", "llama-3.1-8b", "-g", "l4", "--isl", "500", "--osl", "50", "--rps", "1", "--requests", "40", "--itl", "1ms"], 1),
    "sweep": (["sweep", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", "--vary", "rps=5,20", "--jobs", "1"], 0),
}  # fmt: skip


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", CASES)
def test_an_answer_takes_one_screen(name: str, width: int) -> None:
    assert len(terminal(document(name), width).splitlines()) <= MOST_LINES


def test_a_screen_that_is_too_short_keeps_the_answer_and_drops_spare_lines_in_their_order() -> None:
    lines = tuple(Line(f"line {number}", spare=number % 4) for number in range(40))
    shown = render(Document(None, lambda _: [Facts(lines)], lambda _: Rows((), ()))).splitlines()
    assert len(shown) == MOST_LINES
    kept = [line.spare for line in lines if line.text in shown]
    assert kept.count(0) == 10 and kept.count(1) == 0 and kept.count(3) == 10


@pytest.mark.parametrize(("over", "kept"), [(1, ["Set       a", "          b"]), (2, ["Set       b"])])
def test_lines_under_a_label_lose_their_last_first_and_keep_their_label(over: int, kept: list[str]) -> None:
    """A line whose labelled line is dropped takes the label, so that it never reads as one of the line above."""
    others = tuple(Line("other", "Load") for _ in range(MOST_LINES - 3 + over))
    group = (Line("a", "Set", spare=1), Line("b", " ", spare=2), Line("c", " ", spare=1))
    shown = render(Document(None, lambda _: [Facts((*others, *group))], lambda _: Rows((), ()))).splitlines()
    assert shown[len(others) :] == kept


# Screens of an answer, which say the precision, the engine and what is assumed (the price first) however full they are.
OF_ANSWERS = (
    "compare",
    "many GPU types",
    "plan",
    "plan with growth",
    "many optimisations",
    "even odds",
    "cost",
    "whatif",
)


@pytest.mark.parametrize("name", SCREENS)
def test_every_command_takes_one_screen_and_its_colour_is_its_exit_code(
    name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, code = SCREENS[name]
    assert run(arguments) == code
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= MOST_LINES and widest(text) <= 80 and text.isascii()
    if name in OF_ANSWERS:
        assert re.search(r"^Replica +\S.* vLLM \d", " ".join(text.split("\n" + " " * 10)), re.M)
        assert re.search(r"(FP8|BF16) (weights|=)", text)
        assert re.search(r"^Assumed .*\$|^\$/GPU-hour ", text, re.M)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(arguments) == code
    coloured = capsys.readouterr().out
    without = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in without.splitlines()] == text.splitlines()
    first = re.search(r"\x1b\[1;3([12])m", coloured)  # bold red or bold green
    if first is not None:
        assert first[1] == ("1" if code else "2")


SAID_OF = {
    "--speculative eagle3:3@0.75": "speculative decoding by eagle3 drafts 3 tokens, each accepted in 75 % of cases",
    "--prefix-hit 30%": "30 % of each prompt is found in the prefix cache",
    "--lora 16x64": "16 LoRA adapters of rank 64",
    "--kv-offload 50%@25": "50 % of each prompt is found in host memory, read at 25 GB/s",
    "--sparsity 2:4": "2:4 sparse weights",
}


@pytest.mark.parametrize("options", SAID_OF)
def test_an_optimisation_is_a_sentence(options: str, capsys: Capture) -> None:
    asked = ["estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "500", "--osl", "200", "--rps", "5"]
    text, _ = printed([*asked, *options.split()], capsys)
    assert f"With {SAID_OF[options]} " in text


def test_all_details_show_the_statistic_of_a_limit_and_do_not_name_their_own_option(capsys: Capture) -> None:
    asked = ["compare", "chat", "-g", "h100-sxm,l40s,l4", "--no-verify", "--jobs", "1", "--verbose"]
    assert run(asked) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"TTFT \d+ ms, TTFT p95 \d+ ms", text) and "--verbose" not in text


def test_an_answer_that_rests_on_runs_far_from_the_prediction_says_so(capsys: Capture) -> None:
    """Published runs on MI300X have up to several times the predicted ITL."""
    text, found = printed(["compare", "chat", "-g", "h100-sxm,mi300x", "--jobs", "1"], capsys)
    best = found["best"]
    far = best["bands"]["limited.itl_ms"]["high"] / best["limited"]["itl_ms"]["ms"] > 1.5
    assert ("The prediction may be far off: in 8 of 10 published runs like this" in text) == far


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_green_where_the_answer_is_feasible(name: str) -> None:
    found = document(name)
    first = next(iter(sections(found)))
    assert isinstance(first, Facts)
    assert first.lines[0].style.endswith(KEPT if found.feasible else MISSED)


def judged(name: str) -> dict[str, LimitRow]:
    """The table of figures of a case by name."""
    table = next(section for section in sections(document(name)) if isinstance(section, Table))
    return {row.name: row for row in table.records}


def one_less_misses(found: dict[str, Any]) -> bool:
    """Whether the load is above what one replica less carries; so it is where the GPUs are given, and serve their most."""
    demand, replicas = found["inputs"]["demand"], found["deployment"]["replicas"]
    if not any(demand[name] for name in ("requests_per_s", "concurrency", "concurrent_users")):
        return True
    most = (1 + found["load"]["headroom"]) / (1 + found["inputs"]["headroom"])
    return replicas > 1 and most * (replicas - 1) / replicas < 1


@pytest.mark.parametrize("name", FEASIBLE)
def test_each_figure_is_that_of_json_and_its_verdict_follows_from_its_limit(name: str) -> None:
    found, rows = parsed(name), judged(name)
    for latency in ("ttft", "itl", "e2e"):
        limit = found["inputs"]["limits"][f"{latency}_ms"]
        statistic = limit["statistic"] if limit else "mean"
        value = found["latency"][f"{latency}_ms"][statistic]
        one = latency != "itl" and found["inputs"]["osl"] <= 1  # then first token and end are the same
        row = rows.get(f"{latency.upper()} {statistic}", rows.get(f"latency {statistic}") if one else None)
        if row is None:
            assert value is None and limit is None
            continue
        assert row.predicted == milliseconds(value)
        band = found["bands"].get(f"latency.{latency}_ms.{statistic}")
        assert (row.span is None) == (band is None)
        if limit is None:
            assert row.verdict == "" and row.limit is None
        else:
            assert row.limit == milliseconds(limit["ms"])
            binds = found["limiting"]["limit"] == latency and one_less_misses(found)
            kept = "ok, binds" if binds else "ok"
            assert row.verdict == ("does not apply" if value is None else kept if value <= limit["ms"] else "missed")
    demand = found["inputs"]["demand"]["requests_per_s"]
    assert (demand is not None) == ("most requests/s" in rows)
    if demand is not None:
        assert rows["most requests/s"].predicted == number(found["load"]["max_requests_per_s"])
        assert rows["most requests/s"].limit == f"{number(demand)} asked"
    assert not any(row.verdict == "missed" for row in rows.values())


@pytest.mark.parametrize("name", FEASIBLE)
def test_what_a_demand_takes_is_a_share_of_the_capacity(name: str) -> None:
    found, text = parsed(name), " ".join(terminal(document(name)).split())
    demand = found["inputs"]["demand"]
    if demand["requests_per_s"] or demand["concurrency"]:
        share = percent(found["load"]["share_of_max_requests_per_s"])
        of_what = "" if found["load"]["headroom_of"] == "requests_per_s" else " in requests/s"
        assert f"; at {share} of capacity{of_what}" in text
    else:  # GPUs are given: the screen says what they serve, in every unit
        assert f"= {number(found['load']['requests_per_s'])} requests/s =" in text
        if found["users"] is not None and found["inputs"]["mode"] != "offline":
            assert f"{number(found['readings']['users'])} users who think" in text
    assert ("no redundancy" in text) == (found["deployment"]["replicas"] == 1)
    assert "headroom" not in text


@pytest.mark.parametrize("name", CASES)
def test_inputs_are_counted_by_how_they_are_known(name: str) -> None:
    lines = [line for line in terminal(document(name)).splitlines() if line.startswith("Rests on")]
    assert bool(lines) == (document(name).latency is not None)  # a refusal does not rest on the inputs of an answer
    if not lines:
        return
    (line,) = lines
    total, *counts = map(int, re.findall(r"\d+", line))
    by_day = is_by_day(document(name).inputs.demand) or "daily active users" in terminal(
        document(name)
    )  # rests on habits
    assert total == sum(counts) == sum(by_day or a.what not in HABITS for a in document(name).assumptions)


@pytest.mark.parametrize("name", CASES)
def test_all_that_json_says_stands_behind_verbose(name: str) -> None:
    whole = render(document_of(document(name)), detailed=True)
    first, _, options = terminal(document(name)).rpartition("\nNext ")
    behind, shown = iter(whole.splitlines()), " ".join(whole.split())
    assert all(line in behind for line in first.splitlines()), "each line, in its order"
    assert options.strip().startswith("--verbose")  # which the whole no longer offers
    text = shown.lower()
    for section in ("load", "throughput", "utilisation", "cost", "memory"):
        for key, value in (parsed(name)[section] or {}).items():
            if value is not None and not key.startswith("usd_"):
                words = re.sub(r"_(ms|gib|w)$", "", key).replace("_per_", "/").replace("_", " ").lower()
                assert words in text, key
    for assumption in document(name).assumptions:
        assert assumption.what in shown
    assert not any(name in shown for name in ("ttft_ms", "itl_ms", "usd_per", "weights_gib"))  # as JSON writes them


def test_several_gpu_types_say_by_what_they_are_compared() -> None:
    by = OBJECTIVES[document("several").inputs.objective]
    assert f"the {by} of 3 GPU types" in " ".join(terminal(document("several")).split())
    assert "GPU types" not in terminal(document("feasible"))


def test_layouts_that_differ_in_expert_parallelism_alone_are_named_once() -> None:
    lines = [line for line in terminal(document("experts")).splitlines() if " GPUs = " in line]
    shapes = [re.sub(r" EP\d+", "", line.partition(" = ")[2].partition(",")[0]) for line in lines]
    assert len(shapes) == len(set(shapes))


def test_colour_is_for_terminals_and_can_be_forced_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = document_of(document("feasible"))
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain, tty = io.StringIO(), Terminal()
    assert "\x1b" not in render_for(found, plain) and "\x1b[" in render_for(found, tty)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in render_for(found, plain)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in render_for(found, plain) and "\x1b" not in render_for(found, tty)


def test_a_wide_terminal_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    text = render_for(document_of(document("feasible")), Terminal())
    assert 80 < widest(text) <= 150


def test_people_and_requests_at_once_name_each_other(capsys: Capture) -> None:
    asked = ["estimate", "-m", "llama-3.1-8b", "-g", "l40s", "--isl", "1000", "--osl", "200", "--no-verify"]
    for demand, other in (("--users", "--concurrency 50"), ("--concurrency", "--users 50")):
        assert run([*asked, demand, "50"]) == 0
        assert other in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("more", "serves"), [([], "deployment"), (["--disaggregate"], "disaggregated")])
def test_json_names_the_answer_whose_gpus_quiet_counts(capsys: Capture, more: list[str], serves: str) -> None:
    asked = ["estimate", "chat", "-g", "h100-sxm", "--no-verify", *more]
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run([*asked, "-q"]) == 0
    assert found["serves"] == serves and str(found[serves]["gpus"]) == capsys.readouterr().out.strip()
    assert (found["deployment"] is None) == bool(more)
    assert not more or found["cost"]["usd_per_hour"] == found["disaggregated"]["usd_per_hour"]
    assert not more or found["latency"]["ttft_ms"] == found["disaggregated"]["ttft_ms"]


def test_requests_that_each_keep_a_mean_are_explained(capsys: Capture) -> None:
    ran = [
        "simulate",
        "-m",
        "llama-3.1-8b",
        "-g",
        "h100-sxm",
        "--isl",
        "500",
        "--osl",
        "50",
        "--rps",
        "20",
        "--replicas",
        "1",
    ]
    assert run([*ran, "--requests", "300", "--json"]) == 0
    mean = json.loads(capsys.readouterr().out)["itl_ms"]["mean"]
    assert run([*ran, "--requests", "300", "--itl", f"{mean * 1.01:.4g}ms"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "counts requests that keep every limit themselves" in out
        and "estimate checks an answer by a shorter run" in out
    )


def test_the_model_s_own_maximum_is_not_called_what_fits(capsys: Capture) -> None:
    for model, layout, own in (("qwen3-235b-a22b", "8", True), ("llama-3.1-70b", "2", False)):
        assert run(["memory", "-m", model, "-g", "h100-sxm", "--tp", layout, "--max-model-len", "2048"]) == 0
        assert ("the model's longest" in " ".join(capsys.readouterr().out.split())) is own


def test_a_curve_takes_no_count_of_gpus_and_says_what_to_write(capsys: Capture) -> None:
    assert run(["curve", "chat", "-g", "8xh200-sxm"]) == run(["curve", "chat", "--gpus", "8"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("; write h200-sxm") and second.startswith("llmsize: --gpus: has no meaning for a curve")


@pytest.mark.parametrize(("command", "allowed"), [("memory", "--tp"), ("simulate", "--tp, --replicas")])
def test_a_count_of_gpus_is_answered_with_options_of_the_command(capsys: Capture, command: str, allowed: str) -> None:
    assert run([command, "-m", "llama-3.1-8b", "-g", "4xh100-sxm"]) == 2
    assert any(line.endswith(f"use {allowed}") for line in capsys.readouterr().err.splitlines())


def test_bytes_are_counted_in_full(capsys: Capture) -> None:
    asked = ["estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", "--rps", "5"]
    assert run([*asked, "--no-verify", "--verbose"]) == 0
    assert "KV bytes/token 131,072" in " ".join(capsys.readouterr().out.split())  # 2 x 32 layers x 8 heads x 128 x 2


def test_a_curve_says_between_which_loads_none_was_tried(capsys: Capture) -> None:
    asked = [
        "curve",
        "-m",
        "llama-3.1-8b",
        "-g",
        "h100-sxm",
        "--isl",
        "1000",
        "--osl",
        "200",
        "--tp",
        "1",
        "--no-verify",
    ]
    assert run([*asked, "--concurrency", "1..256x4", "--itl", "12ms", "--json"]) == 0
    at = json.loads(capsys.readouterr().out)["chosen"]["concurrency"]
    assert run([*asked, "--concurrency", "1..256x4", "--itl", "12ms"]) == 0
    assert f"--concurrency {at}..{4 * at}:" in capsys.readouterr().out


def test_a_percentile_of_a_curve_has_the_range_of_its_class(capsys: Capture) -> None:
    """As an estimate has it: a percentile is off by the same share as the mean."""
    asked = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", "--tp", "1", "--ttft", "p95:2s"]
    assert run(["curve", *asked, "--concurrency", "8", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["lines"][0]["points"]
    mean, p95 = (found["latency_ms"]["ttft"][name] for name in ("mean", "p95"))
    low, high = (found["bands"]["ttft_ms"][end] * p95 / mean for end in ("low", "high"))
    assert run(["curve", *asked, "--concurrency", "8"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("TTFT p95")]
    assert f"{number(low)} to {number(high)} ms" in line


def test_a_heading_folds_over_three_lines_at_most_where_there_is_room() -> None:
    name = "at the stated demand around the clock"
    table = Table((in_words("kind", name),), [Assumption("x", 1, "", "assumed", "")], "/rows")
    shown = render(Document({}, lambda _: [table], lambda _: Rows((), [])))
    assert len(shown.splitlines()) == 3 + 1


def test_a_borrowed_image_encoder_is_an_assumption_of_the_first_screen_and_no_kernel() -> None:
    (line,) = assumption_lines([Assumption("image encoder", "borrowed, a tower", "", "datasheet", "")], counted=False)
    assert (line.label, line.text) == ("Assumed", "an image encoder (borrowed, a tower)")


def test_gpu_types_that_are_not_the_answer_have_a_price_or_do_not_serve() -> None:
    def serves(gpu: str, usd: float | None) -> Alternative:
        return Alternative(gpu, "fp8", Layout(), 2, 2, 1.0, 1.0, 1.0, 1.0, usd, 1.0, "itl")

    best, cheap, free = serves("A", 1.0), serves("B", 3.5), serves("C", None)
    no = RejectedLayout("D", "fp8", best.sizes, "memory", "", None)
    (line,) = other_types(best, (cheap, serves("B", 9.0), best, free), (no, no._replace(gpu="B")))
    assert line.text == "about 2 x B $3.50/h, 2 x C no price; D cannot serve it" and not line.spare
    (line,) = other_types(best, (best,), (no, no._replace(gpu="E"), no._replace(gpu="E", reason="confidence")))
    assert line.text == "D cannot serve it; no count of E is sure"
    assert not list(other_types(best, (cheap,), ())), "a single other type is among the other layouts"


def test_a_page_leaves_out_the_number_of_lines_that_only_a_screen_hides() -> None:
    shown, more = first_lines("Pays", ("one", "two", "three"), "way", 1)
    assert shown.text == "one" and not shown.of_screen
    assert more.text == "2 more ways: --verbose" and more.of_screen
    assert more.detailed == ("two", "three"), "with --verbose the others stand in its place"


def test_a_task_with_one_latency_has_one_name_and_one_row_for_it() -> None:
    def rows(limit: LimitInMs | None) -> list[str]:
        values = {"ttft_ms": 22.4, "itl_ms": None, "e2e_ms": 22.4}
        found = latencies(lambda name, _: values[name], {"ttft_ms": limit, "itl_ms": None, "e2e_ms": None})
        return [row.name for row in found]

    assert rows(None) == rows(LimitInMs("mean", 1000.0)) == ["latency mean"]
    assert rows(LimitInMs("p95", 1000.0)) == ["latency p95", "latency mean"]


def test_one_latency_has_one_name_in_limits_and_refusals() -> None:
    limits = {"ttft_ms": LimitInMs("p95", 100.0), "itl_ms": None, "e2e_ms": None}
    assert limits_in_words(limits, single=True) == "latency p95 <= 100 ms"
    assert limits_in_words(limits) == "TTFT p95 <= 100 ms"
    assert at_limit("ttft", "p95", "120 ms", 100.0, single=True) == "latency (p95) 120 ms, limit 100 ms"


def test_habits_of_users_are_assumed_aloud_only_where_users_are_shown() -> None:
    habit = Assumption("requests per user per day", 3.0, "", "assumed", "defaults")
    (line,) = assumption_lines([habit], counted=False)
    assert line.text == "3 requests/user/day"
    assert not list(assumption_lines([habit], counted=False, by_day=False))


def test_another_layout_states_a_latency_in_the_statistic_of_its_limit(capsys: Capture) -> None:
    asked = ["estimate", "chat", "-g", "h100-sxm", "--rps", "20"]
    _, found = printed(asked, capsys)
    assert run([*asked, "--no-verify", "--verbose"]) == 0  # where a full screen has room for one, this has both
    text = " ".join(capsys.readouterr().out.split())
    assert found["inputs"]["limits"]["ttft_ms"]["statistic"] == "p95"
    for other in found["alternatives"][:2]:
        ttft = other["limited"]["ttft_ms"]
        assert ttft["statistic"] == "p95" and ttft["ms"] > other["ttft_ms"]
        assert f"TTFT p95 {milliseconds(ttft['ms'])}, ITL {milliseconds(other['itl_ms'])}" in text


def test_a_limit_that_saves_nothing_names_what_binds_then(capsys: Capture) -> None:
    text, found = printed(["estimate", "chat", "-g", "h100-sxm", "--itl", "48ms"], capsys)
    capacity = found["load"]["max_requests_per_s"] / found["deployment"]["replicas"]
    assert f"Binds ITL, at a capacity of {number(capacity)} requests/s a replica" in text
    assert "3 times the limit saves no GPU: --max-utilisation 80 % then binds, at 5.5" in text


def test_the_rate_binds_where_no_latency_does(capsys: Capture) -> None:
    text, found = printed(["estimate", "chat", "-g", "h100-sxm", "--tp", "4"], capsys)
    assert found["limiting"]["limit"] == "utilisation"
    assert re.search(r"most requests/s [^a-z]*to \S+ 20.8 asked ok, binds", text)
    assert "Binds capacity is 80 % of the highest stable rate (--max-utilisation), 9.6" in text


def test_a_model_that_does_not_generate_states_input_tokens_and_their_price(capsys: Capture) -> None:
    text, found = printed(["estimate", "-m", "bge-m3", "-g", "l4", "--isl", "500", "--rps", "20"], capsys)
    assert "input tokens/s 10,000" in text
    usd = found["cost"]["usd_per_million_input_tokens"]
    assert f"$/M input tokens ${number(usd)}" in text


def test_a_setting_is_written_with_all_its_digits() -> None:
    """Someone types what a screen says: 16,384 is never 16,380."""
    assert [stated(value) for value in (16384, 16384.0, 1024, 0.05, 14.9)] == [
        "16,384",
        "16,384",
        "1,024",
        "0.05",
        "14.9",
    ]


def test_a_rate_that_is_served_is_never_written_above_itself() -> None:
    assert screen.rate("requests/s", 15.87, down=True).predicted == "15.8"
    assert screen.rate("requests/s", 15.87).predicted == "15.9"
