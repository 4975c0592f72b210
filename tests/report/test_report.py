"""Reports: the answer first, lines that fit, formats that keep their contract, and nothing that JSON can't hold."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from sizing import __version__
from sizing.answers.answer import Hints
from sizing.answers.estimate import suggestions
from sizing.answers.search import search
from sizing.catalog import models, profiles
from sizing.cli.main import run
from sizing.cli.output import encodable
from sizing.formats.tables import as_csv, as_json, as_markdown
from sizing.formats.text import LABEL_WIDTH, Block, Column, render
from sizing.formats.text import rows as text_rows
from sizing.formats.view import Line
from sizing.formats.words import gib, milliseconds, money, number, of_limit, percent, rounded_usd, stated
from sizing.question.ask import question_of
from sizing.question.options import WORKLOAD_OPTIONS, GivenOptions, options_of
from sizing.report.estimate import Estimate, record
from sizing.report.estimate import document as document_of
from sizing.report.listings import Entry, Listing, document_of_entry, document_of_list

LLAMA = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "isl": 1000, "osl": 200}
CASES: dict[str, dict[str, Any]] = {
    "feasible": {**LLAMA, "rps": 20.0, "ttft": "p95:1s", "itl": "50ms"},
    "several": {**LLAMA, "rps": 20.0, "gpu": "h100-sxm,a100-sxm-80gb,t4", "itl": "15ms"},
    "infeasible": {**LLAMA, "model": "llama-3.1-70b", "gpu": "l4", "tp": 1, "rps": 5.0},
    "budget": {**LLAMA, "rps": 2000.0, "gpus": 2},
    "osl_1": {**LLAMA, "osl": 1, "rps": 20.0},
    "offline": {**LLAMA, "mode": "offline"},
    "concurrency": {**LLAMA, "concurrency": 50, "closed_loop": True},
    "experts": {**LLAMA, "model": "qwen3-30b-a3b", "rps": 20.0},
    "users": {**LLAMA, "dau": 2e5, "peak_to_mean": 2.0, "headroom": "20%"},
    "no_itl": {**LLAMA, "osl": 1, "rps": 20.0, "ttft": "p95:1s"},
    "dear": {**LLAMA, "gpu": "gb200,mi300x", "rps": 100.0},
    "at_most": {**LLAMA, "gpus": 3},
}
FEASIBLE = [name for name in CASES if name not in ("infeasible", "budget")]
STATISTICS = {"mean", "p50", "p90", "p95", "p99"}

# The contract of llmsize.estimate/1: what every version keeps.
KEYS: dict[str, set[str]] = {
    "inputs": {
        "model", "gpu", "gpus_considered", "gpu_ids", "engine", "engine_version", "weight_precision", "kv_precision",
        "isl", "osl", "demand", "limits",
    },
    "deployment": {"gpu", "gpu_id", "gpus", "replicas", "gpus_per_replica", "tp", "pp", "ep", "dp"},
    "load": {"requests_per_s", "concurrency", "concurrency_per_replica", "headroom", "headroom_of"},
    "throughput": {
        "requests_per_s_per_replica", "requests_per_s_per_gpu", "output_tokens_per_s", "output_tokens_per_s_per_gpu",
        "total_tokens_per_s",
    },
    "latency": {"ttft_ms", "itl_ms", "e2e_ms", "solo_ttft_ms", "solo_itl_ms"},
    "memory": {
        "visible_gib", "budget_gib", "weights_gib", "activation_gib", "non_torch_gib", "cuda_graphs_gib", "kv_cache_gib",
        "kv_bytes_per_token", "kv_cache_tokens", "max_concurrency", "max_model_len_that_fits", "fits", "deficit_gib",
    },
    "utilisation": {"prefill_mfu", "prefill_bound", "decode_mbu", "decode_mfu", "decode_bound"},
    "users": {"daily_active_users", "requests_per_user_per_day", "active_hours", "peak_to_mean"},
    "cost": {"usd_per_hour", "usd_per_million_output_tokens", "price_source"},
}  # fmt: skip
TOP = {"schema", "version", "feasible", *KEYS, "limiting", "rejected", "assumptions"}


@cache
def document(name: str, explained: bool = False) -> Estimate:
    """The estimate of a case, as the command builds it."""
    values = {option.name: None for option in WORKLOAD_OPTIONS} | CASES[name]
    asked = question_of(None, options_of(GivenOptions(WORKLOAD_OPTIONS, values)))
    outcome = search(asked)
    if not outcome.within_budget:
        outcome = replace(outcome, hints=Hints(suggestions=suggestions(outcome, simulated=False)))
    return record(outcome, explained=explained)


@cache
def parsed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(as_json(document_of(document(name))), parse_constant=_refused)
    return found


def terminal(found: Estimate, width: int = 80) -> str:
    return render(document_of(found), width)


def _refused(constant: str) -> float:
    raise AssertionError(f"JSON holds {constant}")


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


# --- numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (None, "-"), (35.0, "35"), (35.04, "35.0"), (37.94, "37.9"), (0.4421, "0.442"), (99.96, "100"),
        (999.6, "1,000"), (4396.2, "4,400"), (28458.0, "28,500"), (0.00123, "0.00123"), (-2.345, "-2.35"),
    ],
)  # fmt: skip
def test_a_number_has_three_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (37.94, "37.9 ms"), (999.4, "999 ms"), (999.6, "1.00 s"), (1000, "1 s"), (8174, "8.17 s"), (65432, "65.4 s")],
)  # fmt: skip
def test_a_latency_is_in_ms_below_one_second_and_in_s_above(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


@pytest.mark.parametrize(
    ("usd", "text"), [(None, "-"), (0.0012, "$0.00120"), (3.894, "$3.89"), (99.999, "$100"), (1736.4, "$1,736")]
)
def test_money_has_cents_below_a_hundred(usd: float | None, text: str) -> None:
    assert money(usd) == text


@pytest.mark.parametrize(
    ("share", "limit", "least", "text"),
    [
        (1.002, 1.0, False, "100.2 %"),
        (1.0004, 1.0, False, "100.04 %"),
        (0.998, 1.0, False, "100 %"),
        (1.02, 1.0, False, "102 %"),
        (1 + 1e-9, 1.0, False, "100 %"),
        (0.802, 0.8, False, "80.2 %"),
        (0.897, 0.9, True, "89.7 %"),
        (0.9, 0.9, True, "90 %"),
        (0.002, 0.0, False, "0.2 %"),
    ],
)
def test_what_misses_a_limit_is_never_written_as_the_limit(share: float, limit: float, least: bool, text: str) -> None:
    assert of_limit(share, limit, least=least) == text


@pytest.mark.parametrize(("value", "text"), [(0.92, "0.92"), (8192, "8,192"), (79.19, "79.19"), ("0.24.0", "0.24.0")])
def test_a_given_value_gains_no_digits(value: float | str, text: str) -> None:
    assert stated(value) == text


# --- the table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 110])
@pytest.mark.parametrize("name", CASES)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    text = terminal(document(name), width)
    assert widest(text) <= width


@pytest.mark.parametrize("explained", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_lines_end_without_spaces_and_blocks_with_one_empty_line(name: str, explained: bool) -> None:
    text = terminal(document(name, explained))
    lines = text.split("\n")
    assert all(line == line.rstrip() for line in lines)
    assert lines[0] and lines[-1]
    assert "\n\n\n" not in text
    assert text.isascii()


@pytest.mark.parametrize("name", FEASIBLE)
def test_the_answer_comes_first(name: str) -> None:
    found = document(name)
    assert found.deployment is not None
    first, *others = terminal(found).splitlines()
    assert first.startswith(f"{found.deployment.gpus} x {found.deployment.gpu} = ")
    # An answer of one token has one latency: its first token is its end.
    first_latency = "latency " if name in ("osl_1", "no_itl") else "TTFT "
    capacity = "Capacity " if name == "offline" else "Binds "  # a full cache binds offline work: no limit does
    order = [first_latency, "Demand ", "Replica ", "Memory ", capacity, "Assumed ", "Rests on ", "Next "]
    at = [next(i for i, line in enumerate(others) if line.startswith(start)) for start in order]
    assert at == sorted(at)


# What the demand takes without the budget stands with what is in the way, so that no other change is named.
@pytest.mark.parametrize(("name", "then"), [("infeasible", " try "), ("budget", " demand 2,000 requests/s")])
def test_what_stands_in_the_way_comes_first(name: str, then: str) -> None:
    text = terminal(document(name))
    assert text.startswith("Infeasible: ")
    words, detail = " ".join(text.lower().split()), document(name).limiting.detail.lower()
    assert words.index(detail[:40]) < words.index(then)
    assert words.count(detail[:40]) == 1


def test_headroom_is_of_what_the_demand_counts() -> None:
    open_, closed = document("feasible"), document("concurrency")
    assert open_.load and closed.load
    most = closed.load.concurrency * (1 + closed.load.headroom)
    assert (open_.load.headroom_of, closed.load.headroom_of) == ("requests_per_s", "concurrency")
    assert open_.load.headroom == pytest.approx(open_.load.max_requests_per_s / open_.load.requests_per_s - 1)
    # A closed loop's most is a whole number of requests on each of its equal replicas.
    assert closed.deployment and most / closed.deployment.replicas == pytest.approx(
        round(most / closed.deployment.replicas)
    )


def test_users_are_the_demand_s_own_where_they_were_asked_for_and_else_what_a_rate_means() -> None:
    # 200,000 users * 3 requests / 8 h = 20.83/s on average, twice that at the peak
    served = document("users")
    assert served.users and served.users.stated and served.users.daily_active_users == pytest.approx(2e5)
    assert served.load and served.load.requests_per_s == pytest.approx(2e5 * 3 / (8 * 3600) * 2)
    assert "200,000 daily active users" in " ".join(terminal(served).split())
    rated = document("feasible")  # its screen leaves out a figure that only assumed habits of users decide
    assert rated.users and rated.users.daily_active_users and "daily active users" not in terminal(rated)
    assert "daily active users" not in terminal(document("offline"))


def test_a_price_is_an_assumption_with_its_provider_and_date() -> None:
    (price,) = [a for a in parsed("feasible")["assumptions"] if a["what"] == "price"]
    assert price["kind"] == "assumed" and price["source"] == parsed("feasible")["cost"]["price_source"]
    assert price["value"] == parsed("feasible")["cost"]["usd_per_gpu_hour"]
    assert f"{money(price['value'])} per GPU-hour" in terminal(document("feasible"))


def test_the_engine_is_named_as_its_makers_write_it() -> None:
    assert "vLLM 0." in terminal(document("feasible"))


def test_explained_assumptions_show_their_sources() -> None:
    plain = terminal(document("feasible"))
    explained = render(document_of(document("feasible", True)), detailed=True)
    source = next(a.source for a in document("feasible").assumptions if a.what == "small kernels")
    assert source[:40] not in plain and source[:40] in explained
    assert "formula" in explained and "formula" not in plain


@pytest.mark.parametrize("width", [60, 80])
def test_every_gpu_fits_a_line_with_its_name_whole(width: int) -> None:
    names = profiles.GPUS.ids
    columns = ("name", "memory_gib", "fp8_tflops", "link", "aliases")
    listed = Listing("gpus", columns, tuple((n, 79.19, 1978.9, "xGMI (Infinity Fabric) x8", "x") for n in names))
    text = render(document_of_list(listed), width)
    assert widest(text) <= width
    assert all(any(line.split()[0] == n for line in text.splitlines() if line.strip()) for n in names)
    assert "aliases" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_an_entry_shows_its_sources_by_number(width: int) -> None:
    found = profiles.load_gpu("h100-sxm")
    text = render(
        document_of_entry(Entry(found.id, found.path.name, found.spec.model_dump(json=True, exclude_none=True))),
        width,
    )
    lines = text.splitlines()
    wide = [line.strip() for line in lines if len(line) > width]  # a link or a path stays whole, on a line of its own
    assert [line for line in wide if not re.fullmatch(r"(\[\d+\] )?\S*/\S+", line)] == []
    assert lines[0] == "h100-sxm (h100-sxm.yaml)"
    body, _, sources = text.rpartition("\n\n")
    assert sources.startswith("[1] ")
    for index in range(1, sources.count("\n[") + 2):
        assert f"[{index}]" in body


def test_a_label_hangs_and_columns_align() -> None:
    line = Line("one two three four five", "Label")
    folded = ["".join(text for text, _ in row).rstrip() for row in text_rows([Block((line,))], LABEL_WIDTH + 10)]
    indent = " " * LABEL_WIDTH
    assert folded == ["Label".ljust(LABEL_WIDTH) + "one two", f"{indent}three four", f"{indent}five"]
    columns = (Column("a", False, ("long name", "b"), ("", "")), Column("count", True, ("1", "22"), ("", "")))
    grid = Block(columns=columns)
    # 9 and 5 wide with two spaces between fit 16; at 13 the name folds to 6 and the rows stay beside it
    assert ["".join(t for t, _ in row).rstrip() for row in text_rows([grid], 16)] == [
        "a          count", "long name      1", "b             22",
    ]  # fmt: skip
    assert ["".join(t for t, _ in row).rstrip() for row in text_rows([grid], 13)][1:3] == ["long        1", "name"]


def test_characters_that_an_encoding_lacks_give_way() -> None:
    assert encodable("2 × 3 µs – ≥", "ascii") == "2 x 3 us - >="
    assert encodable("模", "ascii") == "?"
    assert encodable("2 × 3", "utf-8") == "2 × 3"


# --- JSON ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_json_keeps_the_contract(name: str) -> None:
    found = parsed(name)
    assert list(found)[:2] == ["schema", "version"]
    assert (found["schema"], found["version"]) == ("llmsize.estimate/1", __version__)
    assert set(found) >= TOP
    for section, keys in KEYS.items():
        if found[section] is not None:
            assert set(found[section]) >= keys, section
    for entry in found["rejected"]:
        assert set(entry) >= {"gpu", "tp", "pp", "ep", "reason", "detail"}
    for entry in found["assumptions"]:
        assert set(entry) - {"note"} == {"what", "value", "unit", "kind", "source"}
        assert entry["kind"] in ("measured", "datasheet", "derived", "assumed")


@pytest.mark.parametrize("name", FEASIBLE)
def test_a_feasible_answer_has_numbers_everywhere(name: str) -> None:
    found = parsed(name)
    assert found["feasible"] is True
    assert found["inputs"]["gpu"] == found["deployment"]["gpu"]
    assert found["inputs"]["gpu"] in found["inputs"]["gpus_considered"]
    d = found["deployment"]
    assert d["gpus"] == d["replicas"] * d["gpus_per_replica"]
    assert d["gpus_per_replica"] == d["tp"] * d["pp"] * d["dp"]
    for latency in ("ttft_ms", "e2e_ms"):
        values = found["latency"][latency]
        assert set(values) == STATISTICS
        assert all(isinstance(v, float) and v > 0 for v in values.values())
    for section in ("load", "throughput", "users"):
        numbers = [value for key, value in found[section].items() if key != "headroom_of"]
        assert all(isinstance(v, (int, float)) and v >= 0 for v in numbers), section
    assert found["load"]["headroom_of"] in found["load"]
    assert found["memory"]["fits"] is True


@pytest.mark.parametrize("name", [name for name in FEASIBLE if name not in ("osl_1", "no_itl")])
def test_throughput_follows_from_the_rate(name: str) -> None:
    found = parsed(name)
    rate, gpu_count = found["load"]["requests_per_s"], found["deployment"]["gpus"]
    isl, osl = found["inputs"]["isl"], found["inputs"]["osl"]
    t = found["throughput"]
    assert t["output_tokens_per_s"] == pytest.approx(rate * osl)
    assert t["total_tokens_per_s"] == pytest.approx(rate * (isl + osl))
    assert t["requests_per_s_per_gpu"] == pytest.approx(rate / gpu_count)
    # E2E = TTFT + ITL * (OSL - 1), in the means
    e2e = found["latency"]["ttft_ms"]["mean"] + found["latency"]["itl_ms"]["mean"] * (osl - 1)
    assert found["latency"]["e2e_ms"]["mean"] == pytest.approx(e2e, rel=1e-6)


def test_without_a_second_token_there_is_no_itl() -> None:
    found = parsed("osl_1")
    assert set(found["latency"]["itl_ms"].values()) == {None}
    assert found["latency"]["solo_itl_ms"] is None
    assert found["utilisation"]["decode_bound"] is None


@pytest.mark.parametrize("name", ["infeasible", "budget"])
def test_an_infeasible_answer_says_what_limits_it(name: str) -> None:
    found = parsed(name)
    assert found["feasible"] is False
    assert found["deployment"] is found["latency"] is found["load"] is found["cost"] is None
    assert found["limiting"]["limit"] and found["limiting"]["detail"]
    assert found["limiting"]["suggestions"]


def test_what_does_not_fit_shows_its_memory() -> None:
    found = parsed("infeasible")
    assert found["limiting"]["limit"] == "memory"
    # 70.6e9 parameters at 2 bytes are 131 GiB; an L4 shows 22
    assert found["memory"]["fits"] is False
    assert found["memory"]["weights_gib"] > 100
    assert found["memory"]["deficit_gib"] > found["memory"]["weights_gib"] - found["memory"]["visible_gib"]
    assert found["inputs"]["gpu"] == found["inputs"]["gpus_considered"][0]


@pytest.mark.parametrize("name", CASES)
def test_json_is_the_same_every_time_and_in_every_encoding(name: str) -> None:
    values = CASES[name]
    first = as_json(document_of(document(name)))
    document.cache_clear()
    assert CASES[name] is values and as_json(document_of(document(name))) == first
    assert first.isascii()


def test_json_has_no_number_that_json_lacks() -> None:
    odd = Listing("x", ("a",), ((math.inf,), (math.nan,), (0.1 + 0.2,)))
    assert json.loads(as_json(document_of_list(odd)))["rows"] == [[None], [None], [0.3]]


def test_every_model_lists() -> None:
    assert json.loads(as_json(document_of_list(Listing("models", ("name",), tuple((n,) for n in models.SHELF.ids)))))


# --- CSV and Markdown ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_csv_has_a_row_for_every_layout_and_the_same_fields_in_each(name: str) -> None:
    found = document(name)
    head, *body = csv.reader(io.StringIO(as_csv(document_of(found))))
    assert all(len(row) == len(head) for row in body)
    answers = 1 if found.feasible else 0
    assert len(body) == answers + len(found.alternatives) + len(found.rejected)
    status = [row[head.index("status")] for row in body]
    assert status == sorted(status, key=["answer", "feasible", "rejected"].index)


@pytest.mark.parametrize("name", ["feasible", "users"])
def test_a_row_of_the_answer_has_its_percentile_rate_and_sure_gpus(name: str) -> None:
    found = document(name)
    assert found.latency and found.load and found.deployment
    answer = next(csv.DictReader(io.StringIO(as_csv(document_of(found)))))
    for key, limit in found.inputs.limits.items():
        if limit is not None and limit.statistic != "mean":
            column = f"{key.removesuffix('_ms')}_{limit.statistic}_ms"
            assert float(answer[column]) == pytest.approx(getattr(getattr(found.latency, key), limit.statistic))
    assert float(answer["requests_per_s"]) == pytest.approx(found.load.requests_per_s)
    assert answer["gpus_sure"] == str(found.deployment.gpus_sure or "")


@pytest.mark.parametrize("name", CASES)
def test_markdown_is_a_table_of_equal_rows(name: str) -> None:
    found = document(name)
    head, rule, *body = as_markdown(document_of(found)).splitlines()
    assert set(rule) <= set("|- ")
    assert {line.replace("\\|", "").count("|") for line in (head, rule, *body)} == {head.count("|")}
    csv_head = as_csv(document_of(found)).splitlines()[0].split(",")
    shown = [cell.strip() for cell in head.strip("|").split("|")]
    assert shown == [name for name in csv_head if name in shown]


@pytest.mark.parametrize(
    "asked",
    [
        ("-m", "llama-3.1-70b", "--precision", "fp8", "--isl", "2000", "--osl", "300", "--rps", "20", "--ttft", "p95:800ms", "--itl", "25ms"),
        ("-m", "llama-3.1-70b", "--precision", "fp8", "--isl", "1155", "--osl", "211", "--rps", "22", "--ttft", "p95:1s", "--itl", "30ms"),
    ],
)  # fmt: skip
def test_a_promised_limit_keeps_its_promise(asked: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """`A limit from X on takes N GPUs`: asked with X, the answer takes N. At both rates the limit alone costs a replica."""
    assert run(["estimate", "-g", "h100-sxm", *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    limiting = found["limiting"]
    assert limiting["relaxed_gpus"] < found["deployment"]["gpus"]
    place = asked.index(f"--{limiting['limit']}") + 1
    statistic = "p95:" if asked[place].startswith("p95:") else ""
    promised = [*asked[:place], f"{statistic}{limiting['relaxed_limit_ms']}ms", *asked[place + 1 :]]
    assert run(["estimate", "-g", "h100-sxm", *promised, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deployment"]["gpus"] <= limiting["relaxed_gpus"]


def test_a_layout_that_fits_is_the_nearest_miss(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V3 on TP8 answers alone within some 110 ms; layouts that lack a few GiB are no way to 50."""
    asked = ("estimate", "-m", "deepseek-v3", "-g", "h200-sxm", "--isl", "2000", "--osl", "500", "--rps", "5")
    assert run([*asked, "--ttft", "p95:50ms", "--no-verify", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["limiting"]["limit"] == "ttft"
    assert any(change.startswith("TTFT limit") for change in found["limiting"]["suggestions"])


@pytest.mark.parametrize("write", [number, milliseconds, money, rounded_usd, percent, gib])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_figure_without_end_is_written_as_none(write: Callable[[float], str], value: float) -> None:
    assert write(value) == "-"


def test_what_an_api_serves_has_no_end_and_breaks_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (
        "cost",
        "chat",
        "-g",
        "h100-sxm",
        "--own",
        "hgx-h100",
        "--cloud",
        "lambda",
        "--api",
        "1.0,3.0",
        "--no-verify",
    )
    assert run([*asked, "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "API at $1" in out and not re.search(r"\b(inf|nan|infinity)\b", out.lower())
