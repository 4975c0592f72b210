"""Request traces: every published form reads alike, and a row that is wrong is named with its line."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import numpy as np
import pytest
from places import SHARED

from sizing.catalog.traces import MOST_FAULTS, load_trace
from sizing.specs.errors import InputError

PUBLISHED = SHARED / "facts" / "traces"
# The first ten rows of Azure's conversation trace of 2023 in its own form.
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
2023-11-16 18:15:51.3942190,91,16
2023-11-16 18:15:52.5744740,91,16
2023-11-16 18:15:52.5750700,381,84
2023-11-16 18:15:52.6220020,1313,142
2023-11-16 18:15:54.0110640,388,84
2023-11-16 18:15:54.1110640,242,14
2023-11-16 18:15:54.5110640,209,152
"""
PLAIN = "arrival_s,input_tokens,output_tokens\n0,10,1\n1.5,20,2\n1.5,30,3\n"
EXPECTED = [[0.0, 10.0, 1.0], [1.5, 20.0, 2.0], [1.5, 30.0, 3.0]]
FORMS = {
    "plain": PLAIN,
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.000000+00:00,10,1\n2024-05-10 00:00:01.500000+00:00,20,2\n2024-05-10 02:00:01.5+02:00,30,3\n",
    "mooncake": '{"timestamp": 2000, "input_length": 10, "output_length": 1, "hash_ids": [1]}\n'
    '{"timestamp": 3500, "input_length": 20, "output_length": 2}\n\n'
    '{"output_length": 3, "input_length": 30, "timestamp": 3500}\n',
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,10,1,11,API log\n6.5,GPT-4,20,2,22,API log\n6.5,GPT-4,30,3,33,API log\n",
    "other columns between": "id,output_tokens,arrival_s,x,input_tokens\na,1,7,,10\nb,2,8.5,,20\nc,3,8.5,,30\n",
    "other case": PLAIN.replace("arrival_s,input_tokens", "Arrival_S,INPUT_TOKENS"),
    "windows": "\ufeff" + PLAIN.replace("\n", "\r\n"),
    "quoted": PLAIN.replace("1.5,20,2", '"1.5","20","2"'),
}


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def faults(path: Path) -> list[str]:
    with pytest.raises(InputError) as raised:
        load_trace(path)
    return [str(fault) for fault in raised.value.faults]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_reads_alike_with_time_from_the_first_request(form: str, tmp_path: Path) -> None:
    assert load_trace(written(tmp_path, FORMS[form])).tolist() == EXPECTED


@pytest.mark.parametrize("name", ["trace.csv.gz", "packed"])
def test_a_packed_file_reads_as_it_is_whatever_its_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(PLAIN.encode()))
    assert load_trace(path).tolist() == EXPECTED


def test_azures_own_timestamps_have_seven_decimals(tmp_path: Path) -> None:
    rows = load_trace(written(tmp_path, AZURE))
    assert rows.shape == (10, 3)
    # 18:15:50.995169 less 18:15:46.680590, the seventh decimal being 0
    assert rows[1, 0] == pytest.approx(4.314579, abs=1e-6)
    assert rows[:, 1:].sum(axis=0).tolist() == [4364, 716]


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN + "broken\n")
    assert load_trace(path, most=2).tolist() == EXPECTED[:2]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("x,1,1", ["arrival_s", "'x' is no arrival", "seconds"]),
        ("nan,1,1", ["arrival_s", "'nan'"]),
        ("inf,1,1", ["arrival_s", "'inf'"]),
        ("1,1,1", ["arrival_s", "'1' is before the row above", "in order"]),  # the row above is at 1.5
        ("2,0,1", ["input_tokens", "'0'", "above 0"]),
        ("2,1,-3", ["output_tokens", "'-3'"]),
        ("2,1,1.5", ["output_tokens", "'1.5'", "whole"]),
        ("2,,1", ["input_tokens", "''"]),
        ("2,1", ["2 of 3 cells"]),
        ("2,1,1,1", ["has 4 cells, and the header 3"]),
        ("2,1e12,1", ["input_tokens", "'1e12'"]),
        ("1e11,1,1", ["arrival_s", "'1e11'", "too large", "at most 1e+10 s"]),
        ("4e7,1,1", ["arrival_s", "'4e7'", "11,111 h after the first request", "8,784 h"]),  # 4e7 / 3600
    ],
)
def test_a_wrong_row_has_its_line_and_says_what_is_wrong(row: str, words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, f"{PLAIN}{row}\n9,1,1\n")
    (fault,) = faults(path)
    assert fault.startswith(f"{path}:5: ")
    assert all(word in fault for word in words), fault


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ["is not valid JSON"]),
        ("[1, 2]", ["no object"]),
        ("true", ["no object"]),
        ("7", ["no object"]),
        ('"timestamp"', ["no object"]),
        ("null", ["no object"]),
        ('{"timestamp": true, "input_length": 1, "output_length": 1}', ["timestamp", "True is no arrival"]),
        ('{"timestamp": 9000, "input_length": true, "output_length": 1}', ["input_length", "True is no number"]),
        ('{"timestamp": -1e14, "input_length": 1, "output_length": 1}', ["timestamp", "before the row above"]),
        ('{"timestamp": 9000, "input_length": 1}', ["has no output_length"]),
        ('{"timestamp": "soon", "input_length": 1, "output_length": 1}', ["timestamp", "'soon'", "milliseconds"]),
        ('{"timestamp": 9000, "input_length": null, "output_length": 1}', ["input_length", "null"]),
    ],
)
def test_a_wrong_json_line_has_its_number(line: str, words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, FORMS["mooncake"] + line + "\n")
    (fault,) = faults(path)
    assert fault.startswith(f"{path}:5: ")  # three objects and an empty line before
    assert all(word in fault for word in words), fault


@pytest.mark.parametrize("first", ["true", "5", '"arrival_s"', "null", "[1, 2]", "-1.5e3"])
def test_a_first_line_that_is_a_json_value_is_no_header(first: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"{first}\n{first}\n")
    assert faults(path) == [f"{path}:1: is no object with keys, nor a header of columns"]


@pytest.mark.parametrize("at", ["1e11", "1e300"])
def test_an_arrival_that_a_float_holds_too_coarsely_is_a_fault(at: str, tmp_path: Path) -> None:
    (fault,) = faults(written(tmp_path, f"arrival_s,input_tokens,output_tokens\n{at},1,1\n"))
    assert "arrival_s" in fault and "too large" in fault


def test_an_arrival_before_the_start_is_a_fault(tmp_path: Path) -> None:
    (fault,) = faults(written(tmp_path, "arrival_s,input_tokens,output_tokens\n-5,10,10\n1,10,10\n"))
    assert ":2: arrival_s: '-5' is below 0" in fault


def test_seconds_since_1970_are_arrivals(tmp_path: Path) -> None:
    rows = load_trace(written(tmp_path, "arrival_s,input_tokens,output_tokens\n1.7e9,1,1\n1700000001.5,1,1\n"))
    assert rows[:, 0].tolist() == [0, 1.5]


def test_the_first_wrong_rows_are_named_and_no_more(tmp_path: Path) -> None:
    found = faults(written(tmp_path, PLAIN + "x,1,1\n" * 50))
    assert len(found) == MOST_FAULTS == 10
    assert [line.split(":")[1] for line in found] == [str(n) for n in range(5, 15)]


@pytest.mark.parametrize("text", ["a,b,c\n1,2,3\n", '{"time": 3}\n', "arrival_s,input_tokens\n1,2\n", "1,2,3\n4,5,6\n"])
def test_without_the_columns_the_fault_names_those_known(text: str, tmp_path: Path) -> None:
    (fault,) = faults(written(tmp_path, text))
    for name in ("arrival_s", "output_tokens", "ContextTokens", "input_length"):
        assert name in fault
    assert "found: " in fault


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"arrival_s,input_tokens,output_tokens\n", "holds no request"),
        (b"\xff\xfe\x00a", "no UTF-8"),
        (b"\x1f\x8b\x08\x00broken", "cannot be read"),
        (gzip.compress((PLAIN + "9,1,1\n" * 1000).encode())[:-12], "cannot be read"),
    ],
    ids=["empty", "header alone", "not text", "not gzip", "cut gzip"],
)
def test_a_file_that_is_no_trace_is_one_fault(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    (fault,) = faults(path)
    assert str(path) in fault and words in fault


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    written(tmp_path, PLAIN, "conversations.csv")
    (fault,) = faults(tmp_path / "conversation.csv")
    assert "not found" in fault and "conversations.csv?" in fault
    assert "folder" in faults(tmp_path)[0]


def test_twenty_thousand_rows_take_a_fraction_of_a_second(tmp_path: Path) -> None:
    rows = "".join(f"{n / 5:.3f},{1000 + n % 7},{100 + n % 3}\n" for n in range(20_000))
    path = written(tmp_path, "arrival_s,input_tokens,output_tokens\n" + rows)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        assert load_trace(path).shape == (20_000, 3)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.3  # 0.03 s where nothing else runs


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published traces are not here")
@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*_*min.csv")) + sorted(PUBLISHED.glob("*_full.csv")), ids=str)
def test_published_traces_load_as_they_are(path: Path) -> None:
    rows = load_trace(path)
    assert len(rows) == path.read_text().count("\n") - 1
    assert rows[0, 0] == 0 and np.all(np.diff(rows[:, 0]) >= 0)
    assert rows[:, 1:].min() >= 1
