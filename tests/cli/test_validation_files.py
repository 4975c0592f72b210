"""`llmsize validate` from file to report: faults of the CSV, documents, per-row values and the picture."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest
from places import DATA, SHARED

from sizing.catalog.measured import BOUNDS, METRICS, load_measured, unread_columns
from sizing.cli.main import run
from sizing.specs.errors import InputError

SAMPLE = DATA / "measured_sample.csv"
MEASURED = SHARED / "measured"

HEAD = "id,engine,model,gpu,isl,osl,mode,concurrency,itl_ms"
WHOLE = {name for name, bounds in BOUNDS.items() if bounds.whole}
GOOD = "a,vLLM,llama-3.1-8b,h100-sxm,1000,100,closed_loop,4,8"


def faults(path: Path, text: str) -> list[str]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_measured(path)
    return [str(fault).removeprefix(f"{path}") for fault in caught.value.faults]


def test_a_good_row_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{HEAD},rack\n{GOOD},7\n", encoding="utf-8")
    (row,) = load_measured(path)
    assert (row.isl, row.concurrency, row.tp, row.itl_ms) == (1000.0, 4, None, 8.0)
    assert row.measured() == {"itl_ms": 8.0}
    assert row.cells["rack"] == "7"  # a column of one's own, to group by
    (notice,) = unread_columns([row])
    assert str(notice) == "rack: the column is not read; validate --by can group by it"
    assert unread_columns([row], ["rack"]) == []
    path.write_text(f"{HEAD},tpot_ms,ttft_p999_ms,ttft_p25_ms\n{GOOD},7,9,8\n", encoding="utf-8")
    said = [str(notice) for notice in unread_columns(load_measured(path))]
    assert [line.partition(":")[0] for line in said] == ["tpot_ms", "ttft_p999_ms"] and "did you mean ttft" in said[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ":1: is no file of measured rows; allowed: columns id, engine, model"),
        (HEAD, ": holds no rows"),
        (HEAD.replace("gpu", "gpus") + "\n", ":1: gpu: the column is missing; did you mean gpus?"),
        (HEAD.removesuffix(",itl_ms") + "\n", ":1: no column holds a result"),
        (HEAD + ",isl\n", ":1: isl: the column is given twice"),
        (f"{HEAD}\n{GOOD.replace('1000', 'many')}", ":2: isl: 'many' is no number"),
        (f"{HEAD}\n{GOOD.replace('1000', '')}", ":2: isl: is empty"),
        (f"{HEAD}\n{GOOD.replace(',4,', ',4.5,')}", ":2: concurrency: '4.5' is no whole number"),
        (f"{HEAD}\n{GOOD}\n{GOOD[:-1]}-8", ":3: itl_ms: '-8' is out of range; allowed: 0.001 to 1,000,000,000"),
        (f"{HEAD}\n{GOOD[:-1]}nan", ":2: itl_ms: 'nan' is not finite"),
        (f"{HEAD}\n{GOOD},1", ":2: has more cells than the head"),
        (f"{HEAD}\n{GOOD.replace('closed_loop', 'closed')}", ":2: mode: 'closed' is no mode"),
        (
            f"{HEAD}\n{GOOD}\n{GOOD.replace('closed_loop', 'sequential')}",
            ":3: mode: 'sequential' is no mode; allowed: static_batch, closed_loop, open_loop, max_throughput",
        ),
        (f'{HEAD}\n"{GOOD}', "is not valid CSV"),
    ],
)
def test_a_wrong_cell_is_named_by_line_and_column(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in faults(tmp_path / "rows.csv", text)[0]


# Column, the least and the most that is read, and what is just outside. A microsecond to 11 days; one in 11 days to a
# thousand million a second; the longest context published has 10 x 1024 x 1024 tokens.
RANGES = [
    *((name, "0.001", "1e9", "0.00099", "1.001e9") for name in ("ttft_ms", "ttft_p99_ms", "itl_ms", "e2e_ms")),
    *((name, "1e-6", "1e9", "9e-7", "1.001e9") for name in ("req_per_s", "output_tok_per_s")),
    *((name, "1", "10485760", "0.5", "10485761") for name in ("isl", "osl", "max_num_batched_tokens")),
    *((name, "1", "50000", "0", "50001") for name in ("concurrency", "batch")),
    *((name, "1", "500000", "0", "500001") for name in ("num_requests", "max_num_seqs")),
    ("kv_cache_tokens", "1", "1e12", "0", "1.001e12"),
    ("warmup_requests", "0", "500000", "-1", "500001"),
    *((name, "1", "4096", "0", "4097") for name in ("n_gpus", "tp", "pp", "ep", "attention_dp")),
    *((name, "1", "1000000", "0", "1000001") for name in ("batch_wait_steps", "arrival_poll_steps")),
    *((name, "0", "1", "-0.1", "1.1") for name in ("length_ratio_min", "batch_wait_ratio")),
]


@pytest.mark.parametrize(("column", "least", "most", "below", "above"), RANGES)
def test_every_number_has_a_least_and_a_most(
    tmp_path: Path, column: str, least: str, most: str, below: str, above: str
) -> None:
    head, good = HEAD.split(","), GOOD.split(",")
    if column not in head:
        head, good = [*head, column], [*good, ""]
    at = head.index(column)

    def text(value: str) -> str:
        return "\n".join([",".join(head), ",".join([*good[:at], value, *good[at + 1 :]])])

    path = tmp_path / "rows.csv"
    for value in (least, most):
        path.write_text(text(value), encoding="utf-8")
        assert getattr(load_measured(path)[0], column) == float(value)
    for value in (below, above, "1e-300" if float(least) else "-1e-300", "1e300"):
        (found,) = faults(path, text(value))
        wrong = "no whole number" if column in WHOLE and not float(value).is_integer() else "out of range"
        assert found.startswith(f":2: {column}: '{value}' is {wrong}; allowed: ")


def test_bounds_are_told_for_every_column() -> None:
    assert {column for column, *_ in RANGES} == set(BOUNDS)


def test_all_wrong_cells_are_reported_together_up_to_ten(tmp_path: Path) -> None:
    bad = GOOD.replace("1000", "x").replace(",4,", ",y,")
    assert len(faults(tmp_path / "rows.csv", f"{HEAD}\n{bad}")) == 2
    assert len(faults(tmp_path / "rows.csv", "\n".join([HEAD, *[bad] * 20]))) == 10


def test_the_report_accounts_for_every_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    per_row = tmp_path / "per_row.csv"
    assert run(["validate", str(SAMPLE), "--json", "--jobs", "1", "--per-row", str(per_row), "--by", "mode"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "llmsize.validation/1"
    assert document["rows"] == len(load_measured(SAMPLE)) == document["predicted"] + len(document["skipped"])
    (skipped,) = document["skipped"]
    assert skipped["reason"].startswith("'TGI' is not modelled") and "nearest: vllm" in skipped["reason"]
    assert {group["by"]["mode"] for group in document["groups"]} == {
        "static_batch",
        "closed_loop",
        "open_loop",
        "max_throughput",
    }
    assert set(document["metrics"]) == set(METRICS)
    assert document["groups"][0].keys() == {"by", "rows", "metrics"}
    assert all(entry.keys() == {"id", "reason"} for entry in document["skipped"])
    for figures in (found for part in (document, *document["groups"]) for found in part["metrics"].values()):
        corrected = {"corrected_median_ape", "corrected_bias"}
        assert set(figures) == {"n", "median_ape", "p90_ape", "bias", "band_coverage"} | corrected
        assert figures["band_coverage"] is None or 0 <= figures["band_coverage"] <= 1
        assert abs(figures["bias"]) <= figures["p90_ape"]
    with per_row.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["id", "metric", "measured", "predicted", "low", "high", "corrected"]
    assert len(rows) == sum(figures["n"] for figures in document["metrics"].values())
    stated = {(row.id, name): value for row in load_measured(SAMPLE) for name, value in row.measured().items()}
    assert {(row["id"], row["metric"]): float(row["measured"]) for row in rows}.items() <= stated.items()


@pytest.mark.parametrize("name", ["table", "csv", "markdown"])
def test_every_format_tells_of_every_metric(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run(["validate", str(SAMPLE), "--format", name, "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    wanted = ("TTFT", "ITL", "output tokens/s", "TGI") if name == "table" else ("ttft_ms", "itl_ms", "output_tok_per_s")
    assert all(word in out for word in wanted)


def test_bad_input_exits_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(f"{HEAD}\n{GOOD[:-1]}x", encoding="utf-8")
    assert run(["validate", str(bad), str(tmp_path / "none.csv")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "bad.csv:2: itl_ms" in lines[0] and "none.csv" in lines[1]  # both files are told of
    assert run(["validate", str(SAMPLE), "--by", "colour"]) == 2
    assert "'colour' is no column" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["", ",", " , "])
@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_grouping_by_no_column_is_one_fault(by: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", str(SAMPLE), "--jobs", "1", "--by", by, "--format", form]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("llmsize: --by: names no column; allowed: ") and err.count("\n") == 1


@pytest.mark.parametrize("by", ["metric", "engine", "gpu", "model", "mode", "load", "kind"])
def test_breakdowns_by_everything_that_errors_depend_on(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", str(SAMPLE), "--jobs", "1", "--by", by, "--json"]) == 0
    found = [group["by"] for group in json.loads(capsys.readouterr().out)["groups"]]
    assert all(set(group) == {by} and group[by] for group in found) and len(found) > 1


def work_of_any_kind(*_: object) -> NoReturn:
    pytest.fail("rows were predicted")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--per-row", "{}/no/x.csv"], "--per-row: there is no folder '{}/no'"),
        (["--per-row", "{}"], "--per-row: '{}' is a folder"),
        (["--per-row", ""], "--per-row: names no file"),
        (["--plot", "{}/no/x.svg"], "--plot: there is no folder '{}/no'"),
        (["--plot", "{}/a.gif"], "--plot: '{}/a.gif' has no known ending; allowed: .svg, .png, .pdf"),
        (["--plot", "{}/a.svg", "--per-row", "{}/a.svg"], "'{}/a.svg' is the file of --plot too"),
        (["--per-row", str(SAMPLE)], f"is the file of the argument '{SAMPLE}' too"),
    ],
)
def test_files_to_write_are_looked_at_before_any_work(
    options: list[str],
    fault: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sizing.evidence.predict.predict_rows", work_of_any_kind)
    arguments = [option.replace("{}", str(tmp_path)) for option in options]
    before = SAMPLE.read_bytes()
    assert run(["validate", str(SAMPLE), "--jobs", "1", *arguments]) == 2
    assert fault.replace("{}", str(tmp_path)) in capsys.readouterr().err
    assert SAMPLE.read_bytes() == before


def test_a_picture_without_matplotlib_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sizing.evidence.predict.predict_rows", work_of_any_kind)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["validate", str(SAMPLE), "--jobs", "1", "--plot", str(tmp_path / "a.svg")]) == 2
    assert "--plot: needs matplotlib" in capsys.readouterr().err


def test_all_faults_of_a_command_come_out_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, target = str(tmp_path / "none.csv"), str(tmp_path / "no" / "x.csv")
    assert run(["validate", missing, "--per-row", target, "--format", "yam"]) == 2
    fields = ("--format:", "--per-row:", "none.csv:")
    assert all(
        line.startswith(f"llmsize: {field}") or field in line
        for line, field in zip(capsys.readouterr().err.splitlines(), fields, strict=True)
    )


def test_a_home_folder_is_known_in_every_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows.csv").write_text(f"{HEAD}\n{GOOD}\n", encoding="utf-8")
    assert run(["validate", "~/rows.csv", "--jobs", "1", "--per-row", "~/compared.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["files"] == ["~/rows.csv"]
    assert (tmp_path / "compared.csv").read_text().splitlines()[1].startswith("a,itl_ms,8.0,")


def test_the_picture_is_the_same_for_the_same_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        assert run(["validate", str(SAMPLE), "--jobs", "1", "--by", "engine", "--plot", str(path)]) == 0
    text = first.read_text()
    assert text == second.read_text()
    assert "measured ttft_ms" in text and "tensorrt-llm" in text  # axis and legend, as text or in a comment
    assert run(["validate", str(SAMPLE), "--jobs", "1", "--plot", str(tmp_path / "a.gif")]) == 2


def test_a_metric_that_rows_are_grouped_by_has_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    for by in ("metric", "engine,metric"):
        assert run(["validate", str(SAMPLE), "--jobs", "1", "--by", by, "--format", "csv"]) == 0
        head, *rows = csv.reader(capsys.readouterr().out.splitlines())
        assert head[: head.index("n")] == by.split(",")
        assert {row[head.index("metric")] for row in rows} == set(METRICS)
        assert all(len(row) == len(head) for row in rows)


def test_where_no_row_is_predicted_the_report_stands_and_nothing_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    rows, picture = tmp_path / "rows.csv", tmp_path / "a.svg"
    rows.write_text(f"{HEAD}\n{GOOD.replace('vLLM', 'TGI')}\n", encoding="utf-8")
    assert run(["validate", str(rows), "--jobs", "1", "--plot", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert "0 predicted" in out and "1 skipped" in out
    assert err == "llmsize: --plot: no row is predicted, so there is nothing to draw\n" and not picture.exists()


def test_a_file_that_can_t_be_written_in_the_end_is_named_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, pipe = tmp_path / "rows.csv", tmp_path / "pipe"
    rows.write_text(f"{HEAD}\n{GOOD}\n", encoding="utf-8")
    os.mkfifo(pipe)  # without a reader
    assert run(["validate", str(rows), "--jobs", "1", "--per-row", str(pipe)]) == 2
    err = capsys.readouterr().err
    assert err == f"llmsize: --per-row: '{pipe}' cannot be written: nobody reads from this pipe\n"


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measured files are not here")
@pytest.mark.parametrize("name", ["static_batch", "closed_loop", "open_loop", "max_throughput"])
def test_the_measured_files_are_read_whole(name: str) -> None:
    path = MEASURED / f"{name}.csv"
    with path.open(newline="") as stream:
        assert len(load_measured(path)) == sum(1 for _ in csv.DictReader(stream))


def test_a_row_that_cannot_be_read_is_listed_and_the_others_are_predicted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whole files of rows without lengths, as of MLPerf's systems, do not stop the others."""
    mixed, without = tmp_path / "mixed.csv", tmp_path / "without.csv"
    wrong = GOOD.replace("1000", "", 1)
    mixed.write_text("\n".join([HEAD, GOOD, wrong]), encoding="utf-8")
    without.write_text("\n".join([HEAD, wrong]), encoding="utf-8")
    assert run(["validate", str(mixed), str(without), "--jobs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["predicted"], len(found["skipped"])) == (3, 1, 2)
    assert all("is empty" in one["reason"] for one in found["skipped"])
    assert run(["validate", str(without)]) == 2
    assert "is empty" in capsys.readouterr().err
