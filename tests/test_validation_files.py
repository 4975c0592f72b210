"""`llmsize validate` from file to report: faults of the CSV, documents, per-row values and the picture."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from sizing.catalog.measured_csv import load_measured
from sizing.cli.main import run
from sizing.errors import InputError

SAMPLE = Path(__file__).parent / "data" / "measured_sample.csv"
SHARED = Path(__file__).parents[1].parent / "shared" / "measured"

HEAD = "id,engine,model,gpu,isl,osl,mode,concurrency,itl_ms"
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ":1: id: the column is missing"),
        (HEAD, ": holds no rows"),
        (HEAD.replace("gpu", "gpus") + "\n", ":1: gpu: the column is missing; did you mean gpus?"),
        (HEAD.removesuffix(",itl_ms") + "\n", ":1: no column holds a result"),
        (HEAD + ",isl\n", ":1: isl: the column is given twice"),
        (f"{HEAD}\n{GOOD.replace('1000', 'many')}", ":2: isl: 'many' is no number"),
        (f"{HEAD}\n{GOOD.replace('1000', '')}", ":2: isl: is empty"),
        (f"{HEAD}\n{GOOD.replace(',4,', ',4.5,')}", ":2: concurrency: '4.5' is no whole number"),
        (f"{HEAD}\n{GOOD}\n{GOOD[:-1]}-8", ":3: itl_ms: '-8' is not above 0"),
        (f"{HEAD}\n{GOOD[:-1]}nan", ":2: itl_ms: 'nan' is not finite"),
        (f"{HEAD}\n{GOOD},1", ":2: has more cells than the head"),
        (f"{HEAD}\n{GOOD.replace('closed_loop', 'closed')}", ":2: mode: 'closed' is no mode"),
        (f'{HEAD}\n"{GOOD}', "is not valid CSV"),
    ],
)
def test_a_wrong_cell_is_named_by_line_and_column(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in faults(tmp_path / "rows.csv", text)[0]


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
    assert [entry["reason"].startswith("unknown engine 'TGI'") for entry in document["skipped"]] == [True]
    assert {group["by"]["mode"] for group in document["groups"]} == {
        "static_batch",
        "closed_loop",
        "open_loop",
        "max_throughput",
    }
    for figures in document["metrics"].values():
        assert set(figures) == {"n", "median_ape", "p90_ape", "bias", "band_coverage"}
        assert figures["band_coverage"] is None
        assert abs(figures["bias"]) <= figures["p90_ape"]
    with per_row.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["id", "metric", "measured", "predicted", "low", "high"]
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
    assert run(["validate", str(SAMPLE), "--jobs", "1", "--per-row", str(tmp_path / "no" / "x.csv")]) == 2


def test_the_picture_is_the_same_for_the_same_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        assert run(["validate", str(SAMPLE), "--jobs", "1", "--by", "engine", "--plot", str(path)]) == 0
    text = first.read_text()
    assert text == second.read_text()
    assert "measured ttft_ms" in text and "tensorrt-llm" in text  # axis and legend, as text or in a comment
    assert run(["validate", str(SAMPLE), "--jobs", "1", "--plot", str(tmp_path / "a.gif")]) == 2


@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured files are not here")
@pytest.mark.parametrize("name", ["static_batch", "closed_loop", "open_loop", "max_throughput"])
def test_the_measured_files_are_read_whole(name: str) -> None:
    path = SHARED / f"{name}.csv"
    with path.open(newline="") as stream:
        assert len(load_measured(path)) == sum(1 for _ in csv.DictReader(stream))
