"""The report page: what it shows is what its JSON says, it needs nothing from elsewhere, and a browser shows it whole."""

from __future__ import annotations

import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sizing
from sizing.cli.main import run
from sizing.formats.charts import chart, linear_ticks, log_ticks
from sizing.formats.page import bar_chart, value_at
from sizing.formats.view import Figure, Mark, Series, Tick
from sizing.formats.words import gib
from sizing.report.page.decision import cost_by_gpu

ASKED = ["report", "chat", "-g", "h100-sxm,h200-sxm"]
INFEASIBLE = ["report", "-m", "llama-3.1-70b", "-g", "l4", "--tp", "1", "--isl", "1000", "--osl", "200", "--rps", "5"]
VOID = {"meta", "link", "br", "img", "input", "hr", "col"}


class Read(HTMLParser):
    """A page taken apart: texts by JSON pointer, ids, references, elements, and the document it carries."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.cells: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.references: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.scripts: list[str] = []
        self.styles = self.text = ""
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        self.document: dict[str, Any] = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes |= set(named)
        self.ids += [named["id"]] if "id" in named else []
        for name in ("src", "href", "srcset", "action", "data", "xlink:href", "poster"):
            if name in named:
                self.references.append((tag, name, named[name]))
        if tag not in VOID:
            self._open.append((tag, named.get("data-pointer")))
            if named.get("data-pointer"):
                self.cells.append((named["data-pointer"], ""))
            if tag == "script":
                self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1][0] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        tag, pointer = self._open[-1] if self._open else ("", None)
        if tag == "script":
            self.scripts[-1] += data
        elif tag == "style":
            self.styles += data
        else:
            self.text += data
        if pointer:
            self.cells[-1] = (pointer, self.cells[-1][1] + data)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    assert run([*ASKED, "-o", str(target)]) == 0
    return target


@pytest.fixture(scope="module")
def page(written: Path) -> Read:
    return Read(written.read_text(encoding="utf-8"))


def made(arguments: list[str], tmp_path: Path, code: int = 0) -> Read:
    target = tmp_path / "page.html"
    assert run([*arguments, "-o", str(target)]) == code
    return Read(target.read_text(encoding="utf-8"))


# --- figures -----------------------------------------------------------------------------------------------------


def amount(text: str) -> float:
    """The number that a cell shows, in the unit of the JSON: ms, shares, dollars."""
    found = re.match(r"\$?([-+]?[0-9,]*\.?[0-9]+)\s*(%|ms|s|µs)?(?:\s|$)", text)
    assert found is not None, text
    return float(found[1].replace(",", "")) * {"s": 1000.0, "%": 0.01}.get(found[2] or "", 1.0)


def test_every_figure_of_the_page_is_that_of_its_json(page: Read) -> None:
    assert len(page.cells) > 100
    for pointer, text in page.cells:
        value = value_at(page.document, pointer)
        if value is None:
            assert text == "–", pointer
            continue
        rounding = 0.0051 if "%" in text or "$" in text else 0.0
        assert amount(text) == pytest.approx(value, rel=0.0051, abs=rounding), (pointer, text)


def test_the_json_is_the_estimates_own(page: Read, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", *ASKED[1:], "--json"]) == 0
    assert page.document["estimate"] == json.loads(capsys.readouterr().out)
    assert page.document["schema"] == "llmsize.report/1"


def test_the_answer_is_in_words_first(page: Read) -> None:
    d = page.document["estimate"]["deployment"]
    assert f"Yes: {d['gpus']} x {d['gpu']} = " in page.text and "Every limit is kept" in page.text
    assert f"{d['replicas']} replica" in page.text
    assert "likely range" in page.text and "Binds" in page.text


def test_every_assumption_is_listed_with_its_source(page: Read) -> None:
    assert page.document["estimate"]["assumptions"]
    for one in page.document["estimate"]["assumptions"]:
        assert one["what"] in page.text
        assert one["source"] in page.text


def test_the_memory_table_adds_up_to_what_is_visible(page: Read) -> None:
    m = page.document["estimate"]["memory"]
    parts = ("weights_gib", "activation_gib", "non_torch_gib", "cuda_graphs_gib", "kv_cache_gib")
    free = m["visible_gib"] - sum(m[part] for part in parts)
    shown = {pointer: text for pointer, text in page.cells if pointer.startswith("/estimate/memory/")}
    assert {f"/estimate/memory/{part}" for part in (*parts, "budget_gib", "visible_gib")} == set(shown)
    assert f"left free {gib(free)} GiB" in page.text


# --- the decision ------------------------------------------------------------------------------------------------


def test_the_decision_is_that_of_the_estimate(page: Read) -> None:
    d, estimate = page.document["decision"], page.document["estimate"]
    assert d["feasible"] and d["gpus"] == estimate["deployment"]["gpus"] and d["change"] is None
    # 8,760 h a year; a twelfth of it a month.
    assert d["usd_per_month"] == pytest.approx(estimate["cost"]["usd_per_hour"] * 730)
    assert d["usd_per_year"] == pytest.approx(estimate["cost"]["usd_per_hour"] * 8760)
    limit = estimate["limiting"]
    assert d["used"] == pytest.approx(limit["value_ms"] / limit["limit_ms"])
    sure = estimate["deployment"]["gpus_sure"]
    assert ("/estimate/deployment/gpus_sure" in [pointer for pointer, _ in page.cells]) == (sure is not None)
    if sure is not None:  # its price is that of the answer for each GPU, where both are of one type
        assert d["usd_per_month_sure"] == pytest.approx(d["usd_per_month"] * sure / d["gpus"])
        assert d["usd_per_year_sure"] == pytest.approx(12 * d["usd_per_month_sure"])
    else:
        assert d["usd_per_month_sure"] is d["usd_per_year_sure"] is None
    assert {"/decision/gpus", "/decision/usd_per_month", "/decision/used"} <= {pointer for pointer, _ in page.cells}
    assert "Yes: " in page.text and "Every limit is kept, confirmed by simulation" in page.text


def test_the_page_says_when_by_what_and_at_which_price(page: Read) -> None:
    assert f"{page.document['written']}, llmsize {sizing.__version__}; price: " in page.text
    assert page.document["estimate"]["cost"]["price_source"].partition(";")[0] in page.text
    (said,) = re.findall(r"per GPU-hour (\(median of \d+\))", page.text)  # the assumption, the head and the figure
    assert page.text.count(said) == 3 and "--verbose" not in page.text


def test_bars_say_the_sizes_of_the_changes(page: Read) -> None:
    shown = page.text.partition("What would change the answer")[2].partition("One input changed at a time")[0]
    assert page.document["sensitivity"]
    for one in page.document["sensitivity"]:
        share = f"{one['share'] * 100:+.0f} %".replace("-", "\N{MINUS SIGN}")
        assert one["what"] in shown and share in shown
        assert f"{one['gpus']} GPU" in shown or f"{one['gpus']} x {one['gpu']}" in shown


def test_bars_begin_at_zero_on_both_sides_of_it() -> None:
    drawn = bar_chart("t", [("a", (("low", -2.0), ("high", 6.0)), "words")])
    (row,), zero = drawn.rows, drawn.zero
    assert zero == pytest.approx(drawn.width / 4)
    low, high = row.parts
    assert (low.x, low.x + low.width) == (0, zero) and (high.x, high.x + high.width) == (zero, drawn.width)
    assert bar_chart("t", [("a", (("only", 3.0),), "")]).zero is None


def test_an_infeasible_page_shows_the_one_change_that_helps(tmp_path: Path) -> None:
    asked = [
        "report",
        "-m",
        "llama-3.1-70b",
        "-g",
        "h100-sxm",
        "--tp",
        "2",
        "--isl",
        "1000",
        "--osl",
        "200",
        "--rps",
        "5",
    ]
    found = made([*asked, "--itl", "10ms", "--no-verify"], tmp_path, code=1)
    d, helps = found.document["decision"], found.document["estimate"]["limiting"]["suggestions"]
    assert not d["feasible"] and d["gpus"] is None and d["used"] > 1
    assert f"{d['change']['change']}: {d['change']['gpus']} x {d['change']['gpu']} ({d['change']['layout']})" in helps
    assert d["change"]["gpus"] == min(int(re.search(r": (\d+) x ", text)[1]) for text in helps)  # type: ignore[index]
    assert d["change"]["change"] in found.text and "No: no layout meets the demand within the limits" in found.text


def test_a_plan_and_its_cost_stand_on_the_page_where_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["chat", "-g", "h100-sxm", "--no-verify"]
    rules, ways = ["--spare", "1", "--growth", "5%", "--until", "2027-12", "--from", "2026-12"], ["--own", "hgx-h100"]
    found = made(["report", *asked, *rules, *ways, "--cloud", "aws"], tmp_path)
    capsys.readouterr()
    assert run(["plan", *asked, *rules, "--json"]) == 0
    assert found.document["plan"] == json.loads(capsys.readouterr().out)
    assert run(["cost", *asked, *ways, "--cloud", "aws", "--json"]) == 0
    assert found.document["cost"] == json.loads(capsys.readouterr().out)
    assert {"plan", "cost"} <= set(found.ids)
    plan, shown = found.document["plan"], dict(found.cells)
    assert shown["/plan/gpus"] == str(plan["gpus"]) != str(found.document["decision"]["gpus"])  # the reserve is in it
    assert shown["/plan/growth/at_date/gpus"] == str(plan["growth"]["at_date"]["gpus"])
    assert f"Yes: {plan['gpus']} x " in found.text


def test_a_plan_over_its_budget_is_no_answer(tmp_path: Path) -> None:
    found = made(["report", "chat", "-g", "h100-sxm", "--gpus", "8", "--spare", "1", "--no-verify"], tmp_path, code=1)
    assert found.document["estimate"]["feasible"] and not found.document["decision"]["feasible"]
    gpus = found.document["plan"]["gpus"]
    assert (
        f"No: over budget: {gpus} x " in found.text
        and f"takes {gpus} GPUs, {gpus - 8} more than the budget" in found.text
    )


def test_types_of_one_price_stand_in_the_order_of_the_comparison() -> None:
    alike = [SimpleNamespace(feasible=True, usd_per_hour=2.0, gpu=n, weight_precision="fp8", gpus=1) for n in "ba"]
    (drawn,) = cost_by_gpu(SimpleNamespace(comparison=SimpleNamespace(candidates=alike)))  # type: ignore[arg-type]
    assert [row.name for row in drawn.rows] == ["b, FP8", "a, FP8"]


def test_without_their_options_there_is_no_plan_and_no_cost(page: Read) -> None:
    assert page.document["plan"] is None and page.document["cost"] is None
    assert not {"plan", "cost"} & set(page.ids)


# --- curves ------------------------------------------------------------------------------------------------------


def test_the_curves_of_a_rate_pass_through_the_answer(page: Read) -> None:
    estimate = page.document["estimate"]
    own = [point for line in page.document["rates"] for point in line["points"] if point["is_answer"]]
    assert len(own) == 1 and own[0]["feasible"]
    assert own[0]["requests_per_s_per_gpu"] == estimate["throughput"]["requests_per_s_per_gpu"]
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert own[0][name] == estimate["latency"][name]
    # Little's law: requests/s times seconds in the system.
    assert own[0]["in_flight"] == pytest.approx(estimate["load"]["concurrency_per_replica"])


def test_a_curve_of_rates_climbs_and_breaks_its_limits_at_some_rate(page: Read) -> None:
    assert sorted(line["gpu"] for line in page.document["rates"]) == ["H100 SXM 80GB", "H200 SXM 141GB"]
    for line in page.document["rates"]:
        points = line["points"]
        assert len(points) > 8 and points[0]["feasible"] and not points[-1]["feasible"]
        assert [p["itl_ms"]["mean"] for p in points] == sorted(p["itl_ms"]["mean"] for p in points)
        for one in points:
            kept = one["ttft_ms"]["p95"] <= 1000 and one["itl_ms"]["mean"] <= 50
            assert one["feasible"] == kept
            per_gpu = one["requests_per_s_per_gpu"]
            assert one["requests_per_s_per_replica"] == pytest.approx(per_gpu * line["gpus"])
            assert one["requests_per_s_per_8_gpus"] == pytest.approx(8 * per_gpu)


def test_requests_in_flight_are_drawn_as_the_curve_command_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--tp", "1", "--isl", "1000", "--osl", "100", "--ttft", "500ms"]
    found = made(["report", *asked, "--concurrency", "40", "--closed-loop", "--no-verify"], tmp_path)
    assert found.document["rates"] == []
    (line,) = found.document["curve"]["lines"]
    capsys.readouterr()
    assert run(["curve", *asked, "--concurrency", "1..256x2", "--closed-loop", "--no-verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == [line]


# --- comparison --------------------------------------------------------------------------------------------------


COMPARED = ["chat", "-g", "l4,h100-sxm,a100-sxm-80gb", "--precision", "fp8,bf16", "--no-verify"]


def test_the_comparison_is_that_of_the_compare_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(["report", *COMPARED], tmp_path)
    capsys.readouterr()
    assert run(["compare", *COMPARED, "--json"]) == 0
    assert found.document["comparison"] == json.loads(capsys.readouterr().out)
    text = found.text.partition("Comparison of GPU types")[2].partition("What would change the answer")[0]
    shown = [pointer for pointer, _ in found.cells]
    for index, one in enumerate(found.document["comparison"]["candidates"]):
        assert f"{one['gpu']}, {one['weight_precision'].upper()}" in text
        assert f"/comparison/candidates/{index}/gpus" in shown
    # BF16 weights of a 70B model are too slow on L4 where they fit at all: the row stays, with its reason.
    assert "ITL of a request that is alone" in text


def test_the_answer_is_the_first_of_the_comparison(page: Read) -> None:
    first, deployment = page.document["comparison"]["candidates"][0], page.document["estimate"]["deployment"]
    assert {name: first[name] for name in ("gpu", "gpus", "replicas", "tp", "pp")} == {
        name: deployment[name] for name in ("gpu", "gpus", "replicas", "tp", "pp")
    }
    assert all(one["verified"] for one in page.document["comparison"]["candidates"])


def test_one_candidate_is_not_compared_and_a_dash_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "chat", "-g", "h100-sxm", "--no-verify", "-o", "-"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("<!DOCTYPE html>") and out.endswith("</html>\n") and err == ""
    found = Read(out)
    assert found.document["comparison"] is None and "Comparison of GPU types" not in found.text


# --- what would change it ----------------------------------------------------------------------------------------


def test_each_limit_length_and_the_demand_change_by_a_fifth(page: Read) -> None:
    found = {(one["what"], round(one["share"], 3)): one for one in page.document["sensitivity"]}
    price = "price of H100 SXM 80GB"
    names = ("TTFT limit (p95)", "ITL limit", "ISL", "OSL", "demand", price)
    assert set(found) == {(name, share) for name in names for share in (-0.2, 0.2)}
    # The chat workload: TTFT p95 1 s, ITL 50 ms, 1,155 and 211 tokens, 100,000 users * 3 / 8 h * 2 = 20.83 requests/s.
    usd = page.document["estimate"]["cost"]["usd_per_gpu_hour"]
    base = dict(zip(names, (1000, 50, 1155, 211, 100_000 * 3 / (8 * 3600) * 2, usd), strict=True))
    for (name, share), one in found.items():
        assert one["value"] == pytest.approx(base[name] * (1 + share), abs=0.5 if name in ("ISL", "OSL") else 1e-6)


def test_more_work_never_takes_fewer_gpus(page: Read) -> None:
    gpus = page.document["estimate"]["deployment"]["gpus"]
    assert page.document["sensitivity"]
    for one in page.document["sensitivity"]:
        assert one["extra_gpus"] == one["gpus"] - gpus
        harder = one["share"] < 0 if "limit" in one["what"] else one["share"] > 0
        assert one["gpus"] >= gpus if harder else one["gpus"] <= gpus, one


@pytest.mark.parametrize("share", [-0.2, 0.2])
def test_a_changed_input_is_the_answer_to_that_question(
    share: float, page: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {
        "ITL limit": ["--itl", f"{50 * (1 + share):g}ms"],
        "demand": ["--rps", f"{100_000 * 3 / (8 * 3600) * 2 * (1 + share)!r}"],
    }
    for name, options in asked.items():
        assert run(["estimate", *ASKED[1:], *options, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        (one,) = [o for o in page.document["sensitivity"] if o["what"] == name and round(o["share"], 3) == share]
        assert one["gpus"] == answer["deployment"]["gpus"], name


def test_lengths_that_no_longer_fit_have_their_reason(tmp_path: Path) -> None:
    # Llama 3 8B has 8,192 positions: 7,000 + 100 tokens fit, 8,400 + 100 do not.
    asked = ["report", "-m", "meta-llama/Meta-Llama-3-8B-Instruct", "-g", "h100-sxm", "--isl", "7000", "--osl", "100"]
    found = made([*asked, "--rps", "1", "--no-verify"], tmp_path).document["sensitivity"]
    (longer,) = [one for one in found if one["what"] == "ISL" and one["share"] > 0]
    assert not longer["feasible"] and "8,192 positions" in longer["reason"] and longer["gpus"] is None


# --- one file that needs nothing else ----------------------------------------------------------------------------


def test_every_id_is_unique_and_every_link_leads_somewhere(page: Read) -> None:
    assert len(page.ids) == len(set(page.ids))
    for tag, name, target in page.references:
        assert (tag, name) in {("a", "href"), ("link", "href")}
        assert target == "data:," or (target.startswith("#") and target[1:] in page.ids), target


def test_nothing_is_loaded_from_anywhere(page: Read) -> None:
    assert not {"img", "iframe", "object", "embed", "audio", "video", "source"} & set(page.tags)
    assert "@import" not in page.styles and "url(" not in page.styles
    assert len(page.scripts) == 2
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(", page.scripts[1])


def test_the_command_on_the_page_repeats_it_byte_for_byte(written: Path) -> None:
    words = shlex.split(Read(written.read_text(encoding="utf-8")).document["command"])
    assert words[:2] == ["llmsize", "report"] and words[-2:] == ["-o", str(written)]
    before = written.read_bytes()
    assert run(words[1:]) == 0
    assert written.read_bytes() == before


HOSTILE = "</script><script>alert(1)</script>&\"'<b>"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Names of a workload, of a GPU profile and of a folder come from files: on the page they are text and nothing else."""
    folder = tmp_path / "<img src=x onerror=alert(2)>"
    folder.mkdir()
    profile = (Path(sizing.__file__).parents[1] / "hardware_profiles" / "gpus" / "h100-sxm.yaml").read_text("utf-8")
    card = folder / "card.yaml"
    card.write_text(re.sub(r"(?m)^name:.*$", lambda _: f"name: {json.dumps(HOSTILE)}", profile), encoding="utf-8")
    workload = folder / "work.yaml"
    workload.write_text(
        f"name: {json.dumps(HOSTILE)}\nmodel: llama-3.1-8b\ngpu: [{json.dumps(str(card))}]\n"
        f"tokens: {{isl: 500, osl: 50}}\ndemand: {{requests_per_s: 2}}\nsource: {json.dumps(HOSTILE)}\n",
        encoding="utf-8",
    )
    found = made(["report", str(workload), "--no-verify"], tmp_path)
    assert found.document["estimate"]["deployment"]["gpu"] == HOSTILE
    assert HOSTILE in found.text and str(folder) in found.text
    assert len(found.scripts) == 2 and "alert" not in found.scripts[1]
    assert "img" not in found.tags and not any(name.startswith("on") for name in found.attributes)


# --- the command -------------------------------------------------------------------------------------------------


def test_an_infeasible_page_says_what_stands_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(INFEASIBLE, tmp_path, code=1)
    assert "No: no layout has room for the model" in found.text
    assert found.document["estimate"]["limiting"]["detail"] in found.text
    for text in found.document["estimate"]["limiting"]["suggestions"]:
        assert text in found.text
    assert capsys.readouterr().err.startswith("llmsize: wrote ")


def test_what_was_written_is_said_on_stderr_and_a_closed_form_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "page.html"
    found = made([*ASKED, "--no-verify"], tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"llmsize: wrote {target}, {target.stat().st_size:,} bytes\n"
    assert found.document["simulated"] is False and "closed form, not simulated" in found.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--output: is needed"),
        (["-o", "."], "--output: '.' is a folder"),
        (["-o", "/no/such/folder/x.html"], "--output: there is no folder"),
        (["-o", "x.html", "--gpu", "h100-sxn"], "--gpu: unknown GPU 'h100-sxn'"),
        (["-o", " "], "--output: names no file"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "chat", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"llmsize: {said}") and err.count("\n") == 1


# --- charts ------------------------------------------------------------------------------------------------------


def test_ticks_are_round_and_inside() -> None:
    assert log_ticks(90, 2100) == [100, 200, 500, 1000, 2000]
    assert log_ticks(1, 1e6) == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    assert linear_ticks(42) == [0, 10, 20, 30, 40]
    assert linear_ticks(5) == [0, 1, 2, 3, 4, 5]


def test_a_chart_places_values_on_its_axes() -> None:
    series = Series("one", (Mark(100, 0), Mark(1000, 50)))
    drawn = chart(Figure("x (ms)", "y", (series,), limit=Tick(1000.0, "limit 1 s")), "c")
    assert drawn is not None and drawn.figure.limit is not None
    (first, last) = drawn.figure.series[0].marks
    assert drawn.left < first.x < last.x < drawn.right
    assert first.y == drawn.bottom and drawn.top < last.y < drawn.bottom
    assert drawn.figure.limit.at == last.x
    # Logarithmic: the middle between 100 and 1,000 is their geometric mean.
    middle = chart(Figure("x", "y", (Series("s", (Mark(100, 1), Mark(10**2.5, 1), Mark(1000, 1))),)), "c")
    assert middle is not None
    a, b, c = (dot.x for dot in middle.figure.series[0].marks)
    assert b - a == pytest.approx(c - b, abs=0.2)


def test_nothing_to_draw_is_no_chart() -> None:
    assert chart(Figure("x", "y", (Series("empty", ()),)), "c") is None
