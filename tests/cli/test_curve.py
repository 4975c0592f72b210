"""`llmsize curve`: laws of points, known measured answers, mistakes, files and pictures."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from places import DATA, SHARED

from sizing.cli.main import run
from sizing.formats.charts import COLUMNS, LABEL, ROWS, plotted
from sizing.formats.view import Figure, Mark, Series, Tick

COURSE = str(DATA / "course_8b_2000_200.csv")

MEASURED = SHARED / "measured" / "closed_loop.csv"

SMALL = ["curve", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "100", "--closed-loop"]

Capsys = pytest.CaptureFixture[str]


def documented(capsys: Capsys, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The document of a command, which must end with a code."""
    assert run([*arguments, "--json"]) == code, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out))


def points_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [point for line in document["lines"] for point in line["points"]]


# What was measured


@pytest.mark.parametrize(
    ("limit", "per_8_gpus", "precision", "tp", "concurrency"),
    [
        # 8 GPUs at TP1 are 8 replicas: 8 * 5.19543, 8 * 8.84342, 8 * 13.3149.
        ("300ms", 41.56, "fp8", 1, 10),
        ("500ms", 70.75, "fp8", 1, 25),
        ("1s", 106.5, "fp8", 1, 150),
        ("2s", 110.6, "fp8", 1, 250),
    ],
)
@pytest.mark.parametrize(
    "file",
    [COURSE, pytest.param(str(MEASURED), marks=pytest.mark.skipif(not MEASURED.exists(), reason="no such file"))],
)
def test_measured_points_give_the_published_answers(
    file: str, limit: str, per_8_gpus: float, precision: str, tp: int, concurrency: int, capsys: Capsys
) -> None:
    model = "meta-llama/Meta-Llama-3-8B-Instruct"
    filters = ["-m", model, "-g", "h100-sxm", "--isl", "2000", "--osl", "200", "--measured-only"]
    chosen = documented(capsys, "curve", "--measured", file, *filters, "--ttft", limit)["chosen"]
    assert chosen["requests_per_s_per_8_gpus"] == pytest.approx(per_8_gpus, abs=0.05)
    assert (chosen["weight_precision"], chosen["tp"], chosen["concurrency"]) == (precision, tp, concurrency)
    assert chosen["origin"] == "measured"


def test_loads_above_the_most_allowed_say_so_and_why(capsys: Capsys) -> None:
    drawn = [
        "curve",
        "-m",
        "llama-3.1-8b",
        "-g",
        "h100-sxm",
        "--isl",
        "1000",
        "--osl",
        "100",
        "--tp",
        "1",
        "--no-verify",
    ]
    assert run(drawn) == 0
    screen = capsys.readouterr().out
    assert "above the most allowed" in screen.split("the most allowed", 1)[1]
    assert "at most 80 % of the highest stable rate" in " ".join(screen.split())


def test_a_row_counts_all_its_gpus(tmp_path: Path, capsys: Capsys) -> None:
    # 4 GPUs at TP2 are two replicas: 64 in flight and 12 requests/s are 32 and 6 on each, 3 per GPU, 24 per 8 GPUs;
    # 1,200 output tokens/s are 300 per GPU, and 1,200 / 64 = 18.75 per user.
    file = tmp_path / "rows.csv"
    file.write_text(
        "id,engine,model,gpu,isl,osl,mode,n_gpus,tp,concurrency,ttft_ms,output_tok_per_s\n"
        "a,vLLM,some/model,H100-SXM-80GB,500,100,closed_loop,4,2,64,200,1200\n"
    )
    (point,) = points_of(documented(capsys, "curve", "--measured", str(file)))
    assert (point["concurrency"], point["requests_per_s"], point["requests_per_s_per_gpu"]) == (32, 6, 3)
    assert (point["requests_per_s_per_8_gpus"], point["output_tokens_per_s_per_gpu"]) == (24, 300)
    assert point["output_tokens_per_s_per_user"] == 18.75


def test_few_requests_over_many_replicas_are_less_than_one_on_each(tmp_path: Path, capsys: Capsys) -> None:
    """2 and 4 requests in flight over 8 replicas of TP2 on 16 GPUs are a quarter and a half of one on each."""
    with Path(COURSE).open() as stream:
        row = next(csv.DictReader(stream))
    path = tmp_path / "rows.csv"
    with path.open("w") as stream:
        writer = csv.DictWriter(stream, row.keys())
        writer.writeheader()
        for number, load in enumerate(("2", "4", "16")):
            rate = float(row["req_per_s"]) * int(load) / int(row["concurrency"])
            writer.writerow(
                {**row, "id": str(number), "n_gpus": "16", "tp": "2", "concurrency": load, "req_per_s": rate}
            )
    found = documented(capsys, "curve", "--measured", str(path))
    assert [point["concurrency"] for point in points_of(found)] == [0.25, 0.5, 2]


def test_lines_that_differ_in_their_engine_alone_say_it(tmp_path: Path, capsys: Capsys) -> None:
    with Path(COURSE).open() as stream:
        row = next(csv.DictReader(stream))
    path = tmp_path / "rows.csv"
    with path.open("w") as stream:
        writer = csv.DictWriter(stream, row.keys())
        writer.writeheader()
        for version in ("0.10.0", "0.12.0"):
            writer.writerow({**row, "id": version, "engine_version": version})
    assert run(["curve", "--measured", str(path)]) == 0
    legend = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("a "))
    assert "0.10.0" in legend and "b " in legend


def test_a_median_is_no_mean(tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(
        "id,engine,model,gpu,isl,osl,mode,tp,concurrency,ttft_ms,req_per_s,notes\n"
        "a,vLLM,some/model,H100-SXM-80GB,500,100,closed_loop,1,8,200,5,MEDIAN ttft/tpot/e2e (means not stored)\n"
    )
    document = documented(capsys, "curve", "--measured", str(file))
    (point,) = points_of(document)
    assert (point["ttft_ms"], point["latency_ms"]["ttft"]["p50"], point["x_ms"]) == (None, 200, 200)
    assert document["x"]["statistic"] == "p50"
    judged = documented(capsys, "curve", "--measured", str(file), "--ttft", "300ms", code=1)
    assert judged["limiting"]["limit"] is None and "mean TTFT" in judged["limiting"]["detail"]
    documented(capsys, "curve", "--measured", str(file), "--ttft", "p50:300ms")


def test_no_prediction_outdoes_what_was_measured(capsys: Capsys) -> None:
    arguments = ["curve", "--measured", COURSE, "-m", "meta-llama/Meta-Llama-3-8B-Instruct", "--ttft", "500ms"]
    document = documented(capsys, *arguments, "--no-verify")
    origins = [line["origin"] for line in document["lines"]]
    assert origins == ["measured"] * 4 + ["predicted"] * 4  # fp16 and fp8 at TP1 and TP2, the loads as measured
    assert {line["origin"]: [p["concurrency"] for p in line["points"]] for line in document["lines"]} == {
        origin: [1, 10, 25, 50, 100, 150, 200, 250] for origin in ("measured", "predicted")
    }
    assert document["inputs"]["engine"] == "tensorrt-llm"  # that of the file
    assert document["chosen"]["origin"] == "measured"
    assert document["chosen"]["requests_per_s_per_8_gpus"] == pytest.approx(70.75, abs=0.01)
    assert {entry["origin"] for entry in document["pareto"]} == {"measured", "predicted"}


# Laws of points


@pytest.fixture(scope="module")
def simulated() -> dict[str, Any]:
    """Eight lines of an 8B model, simulated."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdout", out)
        assert run([*SMALL, "--precision", "fp8,bf16", "--ttft", "p95:500ms", "--itl", "30ms", "--json"]) == 0
    return dict(json.loads(out.getvalue()))


def test_a_closed_loop_keeps_littles_law(simulated: dict[str, Any]) -> None:
    """In flight = requests/s x E2E; the start and the end of a run of ten rounds are the tolerance."""
    assert points_of(simulated)
    for point in points_of(simulated):
        assert point["requests_per_s"] * point["e2e_ms"] / 1000 == pytest.approx(point["concurrency"], rel=0.06)


def test_rates_are_of_one_replica_one_gpu_and_eight(simulated: dict[str, Any]) -> None:
    assert simulated["lines"] and all(line["points"] for line in simulated["lines"])
    for line in simulated["lines"]:
        assert line["gpus"] == line["tp"] * line["pp"] * line["dp"]
        for point in line["points"]:
            assert point["requests_per_s_per_8_gpus"] == pytest.approx(8 * point["requests_per_s_per_gpu"])
            assert point["requests_per_s"] == pytest.approx(line["gpus"] * point["requests_per_s_per_gpu"])
            assert point["output_tokens_per_s_per_gpu"] == pytest.approx(100 * point["requests_per_s_per_gpu"])


def test_the_chosen_point_keeps_the_limits_and_no_better_one_does(simulated: dict[str, Any]) -> None:
    kept = [
        point
        for point in points_of(simulated)
        if point["latency_ms"]["ttft"]["p95"] <= 500 and point["latency_ms"]["itl"]["mean"] <= 30
    ]
    assert [point for point in points_of(simulated) if point["feasible"]] == kept
    best = max(point["requests_per_s_per_8_gpus"] for point in kept)
    assert simulated["chosen"]["requests_per_s_per_8_gpus"] == best
    assert simulated["chosen"]["feasible"] and [p["chosen"] for p in points_of(simulated)].count(True) == 1


def test_the_axis_is_of_the_statistic_that_its_limit_bounds(simulated: dict[str, Any]) -> None:
    assert simulated["x"] == {"metric": "ttft", "statistic": "p95", "limit_ms": 500}
    assert all(point["x_ms"] == point["latency_ms"]["ttft"]["p95"] for point in points_of(simulated))


def test_the_pareto_set_is_never_dominated(simulated: dict[str, Any]) -> None:
    front = [(entry["x_ms"], entry["requests_per_s_per_8_gpus"]) for entry in simulated["pareto"]]
    assert front
    for x, y in ((point["x_ms"], point["requests_per_s_per_8_gpus"]) for point in points_of(simulated)):
        assert not any(x <= a and y >= b and (x < a or y > b) for a, b in front)
        assert (x, y) in front or any(a <= x and b >= y for a, b in front)


def test_bands_hold_the_worse_and_the_better_edge(simulated: dict[str, Any]) -> None:
    assert all(point["bands"] for point in points_of(simulated))
    for point in points_of(simulated):
        for name, band in point["bands"].items():
            assert 0 < band["low"] < band["high"] and band["n"] > 0
            assert band["low"] / point[name] <= 1.5 and band["high"] / point[name] >= 0.5


def test_what_is_in_flight_beyond_the_slots_waits(capsys: Capsys) -> None:
    document = documented(capsys, *SMALL, "--tp", "1", "--concurrency", "8,16,64", "--max-num-seqs", "16")
    eight, sixteen, many = points_of(document)
    assert [point["beyond_slots"] for point in (eight, sixteen, many)] == [False, False, True]
    assert many["waiting"] == pytest.approx(48, rel=0.1)  # 64 less the 16 slots
    assert many["requests_per_s"] == pytest.approx(sixteen["requests_per_s"], rel=0.1)  # no more come through
    assert many["ttft_ms"] > 10 * sixteen["ttft_ms"]


def test_a_full_cache_is_the_first_point_with_no_room_for_one_more(capsys: Capsys) -> None:
    document = documented(capsys, *SMALL, "--tp", "1", "--concurrency", "1..256x2", "--memory-fraction", "0.3")
    (line,) = document["lines"]
    (full,) = document["cache_full"]
    holds = line["cache_holds"]
    assert full["cache_holds"] == holds and 1 < holds < 256
    assert full["concurrency"] == min(c for c in (2**n for n in range(9)) if c + 1 > holds)
    assert all(p["kv_cache_utilisation"] <= 1 for p in line["points"])


def test_processes_change_nothing(capsys: Capsys) -> None:
    arguments = [*SMALL, "--tp", "1,2", "--concurrency", "1,16"]
    assert documented(capsys, *arguments, "--jobs", "1") == documented(capsys, *arguments, "--jobs", "2")


def test_the_closed_form_says_nothing_beyond_the_slots(capsys: Capsys) -> None:
    arguments = [*SMALL, "--tp", "1", "--concurrency", "8,64", "--max-num-seqs", "16", "--no-verify"]
    within, beyond = points_of(documented(capsys, *arguments))
    assert within["requests_per_s"] * within["e2e_ms"] / 1000 == pytest.approx(8)  # Little's law holds exactly
    assert beyond["beyond_slots"] is True and beyond["feasible"] is False
    for name in ("ttft_ms", "itl_ms", "e2e_ms", "x_ms", "requests_per_s", "kv_cache_utilisation", "mbu"):
        assert beyond[name] is None


POISSON = [
    "curve",
    "-m",
    "llama-3.1-8b",
    "-g",
    "h100-sxm",
    "--precision",
    "fp8",
    "--isl",
    "1000",
    "--osl",
    "200",
    "--tp",
    "1",
]


@pytest.mark.parametrize("closed_form", [False, True])
def test_poisson_arrivals_keep_so_many_in_flight_on_average(closed_form: bool, capsys: Capsys) -> None:
    options = ["--concurrency", "4,32", *(["--no-verify"] if closed_form else [])]
    found = documented(capsys, *POISSON, *options)
    assert points_of(found)
    for point in points_of(found):
        # Little's law: in flight = rate x time; the simulated time differs from the closed form's by some per cent.
        held = point["requests_per_s"] * point["e2e_ms"] / 1000
        assert held == pytest.approx(point["concurrency"], rel=0.01 if closed_form else 0.1)


def test_poisson_arrivals_do_not_wait_for_each_other_as_a_closed_loop_does(capsys: Capsys) -> None:
    loads = ["--concurrency", "32"]
    (poisson,) = points_of(documented(capsys, *POISSON, *loads))
    (closed,) = points_of(documented(capsys, *POISSON, "--closed-loop", *loads))
    assert poisson["ttft_ms"] < closed["ttft_ms"] / 2
    assert poisson["requests_per_s"] == pytest.approx(closed["requests_per_s"], rel=0.1)


def test_a_point_under_poisson_arrivals_is_what_estimate_says_of_its_rate(capsys: Capsys) -> None:
    (point,) = points_of(documented(capsys, *POISSON, "--concurrency", "32"))
    rate = ["--rps", f"{point['requests_per_s']:.6f}", "--itl", "1s"]
    answer = documented(capsys, "estimate", *POISSON[1:], *rate)
    assert answer["deployment"]["gpus"] == 1
    for name in ("ttft_ms", "itl_ms"):
        assert answer["latency"][name]["mean"] == pytest.approx(point[name], rel=0.03)


def test_no_stable_rate_keeps_more_in_flight_than_there_are_slots(capsys: Capsys) -> None:
    found = documented(capsys, *POISSON, "--concurrency", "8,64", "--max-num-seqs", "16")
    served, waiting = points_of(found)
    assert served["ttft_ms"] and waiting["ttft_ms"] is None and waiting["beyond_slots"]


def test_a_layout_that_does_not_fit_stays_with_its_reason(capsys: Capsys) -> None:
    model = ["-m", "llama-3.1-70b", "--isl", "1000", "--osl", "100", "-g", "h100-sxm", "--tp", "1,4", "--no-verify"]
    small, large = documented(capsys, "curve", *model)["lines"]
    assert (small["fits"], small["points"]) == (False, []) and "GiB more per GPU" in small["reason"]
    assert large["fits"] and large["reason"] is None and large["points"]


def test_where_no_point_keeps_the_limits_the_nearest_is_named(capsys: Capsys) -> None:
    document = documented(capsys, *SMALL, "--tp", "1,2", "--no-verify", "--itl", "1ms", code=1)
    assert document["chosen"] is None and document["feasible"] is False
    nearest = min(point["itl_ms"] for point in points_of(document) if point["itl_ms"] is not None)
    found = document["limiting"]
    assert found["limit"] == "itl" and found["nearest"]["itl_ms"] == nearest
    assert found["excess"] == pytest.approx(nearest - 1)
    assert document["x"]["metric"] == "itl"  # which alone is limited


def test_whole_answers_are_drawn_over_their_end(capsys: Capsys) -> None:
    arguments = [*SMALL, "--tp", "1", "--concurrency", "1", "--no-verify"]
    assert documented(capsys, *arguments, "--mode", "sequential")["x"]["metric"] == "e2e"
    assert documented(capsys, *arguments, "--mode", "sequential", "--x", "itl")["x"]["metric"] == "itl"


# Mistakes


def test_mistakes_come_out_together(capsys: Capsys) -> None:
    bad = ["--tp", "1,x", "--concurrency", "9..1", "--x", "tfft", "--seed", "-1", "--plot", "a.gif", "--itl", "5"]
    assert run(["curve", "chat", *bad]) == 2
    told = capsys.readouterr().err
    for option in ("--tp", "--concurrency", "--x", "--seed", "--plot", "--itl", "--gpu"):
        assert f"llmsize: {option}: " in told
    assert "did you mean ttft?" in told


def test_what_predicts_has_no_meaning_for_measurements_alone(capsys: Capsys) -> None:
    assert run(["curve", "--measured", COURSE, "--engine", "vllm", "--seed", "1"]) == 2
    told = capsys.readouterr().err
    assert "--engine: has no meaning" in told and "--seed: has no meaning" in told


def test_a_file_of_several_shapes_asks_for_one(capsys: Capsys) -> None:
    assert run(["curve", "--measured", str(DATA / "measured_sample.csv")]) == 2
    told = capsys.readouterr().err
    assert "a curve is of one" in told and "by --model, --isl and --osl" in told
    assert run(["curve", "--measured", COURSE, "--precision", "int4"]) == 2
    assert "--precision: leaves no measured row; allowed: fp16, fp8" in capsys.readouterr().err


# Files


def golden(name: str, text: str) -> str:
    """The kept text of a golden file; LLMSIZE_GOLDEN=write keeps this one instead."""
    path = DATA / "golden" / name
    if os.environ.get("TESTS_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def rounded(value: Any) -> Any:
    """Four significant digits: constants are refitted, and machines differ in the last ones."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items() if name not in ("version", "assumptions")}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def test_the_json_of_a_closed_form_curve_is_as_kept(capsys: Capsys) -> None:
    document = documented(capsys, *SMALL, "--tp", "1", "--concurrency", "1,16", "--no-verify", "--ttft", "200ms")
    text = json.dumps(rounded(document), indent=1) + "\n"
    assert text == golden("curve_closed_form.json", text)


def test_the_csv_of_measured_points_is_as_kept(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA.parent)
    assert run(["curve", "--measured", "data/course_8b_2000_200.csv", "--ttft", "300ms", "--format", "csv"]) == 0
    text = capsys.readouterr().out
    assert text == golden("curve_measured.csv", text)
    read = list(csv.DictReader(io.StringIO(text)))
    assert len(read) == 32
    (chosen,) = (row for row in read if row["chosen"].lower() == "true")
    assert float(chosen["requests_per_s_per_8_gpus"]) == pytest.approx(41.56, abs=0.005)


# Pictures


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs llmsize[plot]")
def test_the_picture_has_every_line_the_limit_and_the_labels(tmp_path: Path, capsys: Capsys) -> None:
    picture = tmp_path / "curve.svg"
    assert run(["curve", "--measured", COURSE, "--ttft", "300ms", "--plot", str(picture)]) == 0
    capsys.readouterr()
    svg = picture.read_text(encoding="utf-8")
    assert len(set(re.findall(r'id="(line-\d+)"', svg))) == 4
    for name in ("limit", "chosen", "pareto"):
        assert f'id="{name}"' in svg
    told = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
    labels = ("Meta-Llama-3-8B", "FP16/FP8 weights", "ISL 2,000", "OSL 200", "concurrency 1 to 250", "TP1, TP2")
    for label in (*labels, "mean TTFT (ms)", "requests/s per 8 GPUs", "limit 300 ms", "chosen: 41.6", "Pareto set"):
        assert label in told, label
    for line in ("FP16 TP1, measured", "FP16 TP2, measured", "FP8 TP1, measured", "FP8 TP2, measured"):
        assert line in told


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs llmsize[plot]")
@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_picture_is_of_the_form_of_its_ending(form: str, start: bytes, tmp_path: Path, capsys: Capsys) -> None:
    picture = tmp_path / f"curve.{form}"
    assert run([*SMALL, "--tp", "1", "--concurrency", "1,8", "--no-verify", "--plot", str(picture)]) == 0
    capsys.readouterr()
    assert picture.read_bytes().startswith(start)


def test_lines_are_told_apart_without_colour() -> None:
    from sizing.formats.pictures import style

    plain = [(style(n).marker, style(n).line, style(n).face == "white") for n in range(14)]
    assert len(set(plain)) == 14
    assert style(0, hollow=True).face == "white" and style(0, hollow=True).line != style(0).line


def test_the_plot_in_text_has_its_marks_in_place() -> None:
    # Over one decade and half the height: the first point bottom left of the middle row, the second top right.
    series = Series("line", (Mark(10.0, 5.0), Mark(100.0, 10.0, chosen=True)))
    drawn = list(plotted(Figure("x", "y", (series,), limit=Tick(31.6228, "limit"))))
    cells = [row[LABEL + 2 :] for row in drawn[:ROWS]]
    assert cells[0][COLUMNS - 1] == "*"
    assert cells[ROWS // 2][0] == "a"
    assert {row.find(":") for row in cells} == {(COLUMNS - 1) // 2}  # 31.6 is the middle of a decade
    assert all(len(row) <= 60 for row in drawn)
    assert drawn[0].startswith(f"{'10':>{LABEL}} |") and "10" in drawn[-1] and "50" in drawn[-1]


@pytest.mark.parametrize("columns", [60, 80, 110])
def test_the_table_says_the_answer_first_and_fits(
    columns: int, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(["curve", "--measured", COURSE, "--ttft", "300ms"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("FP8 TP1 on H100 SXM 80GB, 10")
    lines = told.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[1].startswith("Every limit is kept") == (columns >= 80)  # no line folds that has room
    assert "Every limit is kept" in told and len(lines) <= 24
