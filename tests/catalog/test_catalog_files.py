"""Reading files: every mistake is named with its line, and no bytes lead to anything but an InputError."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.catalog.files import MAX_FILE_BYTES, DataFile, read_json, read_yaml, validate, write_bytes
from sizing.catalog.yaml import MAX_DEPTH, spots
from sizing.specs.errors import InputError
from sizing.specs.gpu import Gpu
from sizing.specs.workload import Workload

GOOD = "model: m\ntokens: {isl: 2000, osl: 200}\n"
ON_TOP = "must hold a mapping of keys to values at the top"
TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep"
COUNT = "must be a whole number above 0 and at most 1,000,000,000,000, not "
RATE = f"{GOOD}demand:\n  requests_per_s: "
FINITE = "must be a finite number, not "


def faults_in(tmp_path: Path, content: str | bytes, name: str = "w.yaml") -> list[Any]:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as caught:
        validate(Workload, read_yaml(path))
    return list(caught.value.faults)


def only_fault(tmp_path: Path, content: str | bytes) -> Any:
    faults = faults_in(tmp_path, content)
    assert len(faults) == 1, list(map(str, faults))
    return faults[0]


# (what the file holds, line, field, words of the message)
BAD_FILES = {
    "empty": ("", None, None, "is empty"),
    "comments only": ("# nothing\n\n", None, None, "is empty"),
    "a null": ("~\n", None, None, "is empty"),
    "a list on top": ("- a\n- b\n", 1, None, ON_TOP),
    "a word on top": ("hello\n", 1, None, ON_TOP),
    "unclosed list": ("model: m\ntokens: [1,\n", 3, None, "is not valid YAML"),
    "colon in a plain value": ("model: a: b\n", 1, None, "mapping values are not allowed"),
    "tab as indent": ("model: m\ntokens:\n\tisl: 1\n", 3, None, "indent with spaces, not with tabs"),
    "two documents": (f"{GOOD}---\n{GOOD}", 3, None, "a second YAML document starts here"),
    "two documents, null first": (f"~\n---\n{GOOD}", 2, None, "a second YAML document starts here"),
    "anchor": (f"name: &a x\n{GOOD}", 1, None, "has the YAML anchor &a"),
    "alias": (f"{GOOD}name: *a\n", 3, None, "is the YAML alias *a"),
    "python tag": (f"{GOOD}name: !!python/name:os.system x\n", 3, None, "has the YAML tag"),
    "own tag": (f"{GOOD}name: !secret x\n", 3, None, "has the YAML tag !secret"),
    "key twice": (f"{GOOD}model: n\n", 3, "model", "is given twice"),
    "inner key twice": (
        "model: m\ntokens:\n  isl: 1\n  isl: 2\n  osl: 1\n",
        4,
        "tokens.isl",
        "is given twice",
    ),
    "list as key": ("model: m\n? [a, b]\n: 1\n", 2, None, "a key must be text"),
    "flow depth": (f"{GOOD}name: {'[' * 100_000}", 3, None, TOO_DEEP),
    "block depth": (f"{GOOD}name:\n  {'- ' * 100_000}", 4, None, TOO_DEEP),
    "closed depth": (
        f"{GOOD}name: {'[' * 40}{']' * 40}\n",
        3,
        None,
        TOO_DEEP,
    ),
    "latin-1": (f"{GOOD}name: ".encode() + b"caf\xe9\n", 3, None, "is not UTF-8 text"),
    "binary": (b"\x7fELF\x02\x01\x00\x00", 1, None, "is not text"),
    "null byte": (f"{GOOD}name: a\x00b\n", 3, None, "is not text"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, case: str) -> None:
    content, line, field, words = BAD_FILES[case]
    fault = only_fault(tmp_path, content)
    assert (fault.line, fault.field) == (line, field)
    assert words in fault.message
    assert fault.file == str(tmp_path / "w.yaml")


# (the fields beside a good model and tokens, line, field, whole message)
BAD_FIELDS = {
    "text for a number": ("tokens: {isl: abc, osl: 1}", 2, "tokens.isl", f"{COUNT}'abc'"),
    "zero": ("tokens: {isl: 0, osl: 1}", 2, "tokens.isl", f"{COUNT}'0'"),
    "negative": ("tokens:\n  isl: 5\n  osl: -1", 4, "tokens.osl", f"{COUNT}'-1'"),
    "fraction": ("tokens: {isl: 1.5, osl: 1}", 2, "tokens.isl", f"{COUNT}'1.5'"),
    "yes": ("tokens: {isl: yes, osl: 1}", 2, "tokens.isl", f"{COUNT}'yes'"),
    "octal": ("tokens: {isl: 010, osl: 1}", 2, "tokens.isl", f"{COUNT}'010'"),
    "sexagesimal": ("tokens: {isl: 1:30, osl: 1}", 2, "tokens.isl", f"{COUNT}'1:30'"),
    "nothing": ("tokens: {isl: , osl: 1}", 2, "tokens.isl", f"{COUNT}empty"),
    "a list": ("tokens:\n  isl:\n  - 5\n  osl: 1", 3, "tokens.isl", f"{COUNT}a list"),
    "no mapping": ("tokens: 5", 2, "tokens", "must be a mapping of keys to values, not '5'"),
    "missing inside": ("tokens:\n  isl: 5", 2, "tokens.osl", "is required"),
    "infinite": (f"{RATE}1e400", 5, "demand.requests_per_s", f"{FINITE}'1e400'"),
    ".inf": (f"{RATE}.inf", 5, "demand.requests_per_s", f"{FINITE}'.inf'"),
    ".nan": (f"{RATE}.nan", 5, "demand.requests_per_s", f"{FINITE}'.nan'"),
    "bounds": (
        f"{GOOD}serving: {{memory_fraction: 1.5}}",
        4,
        "serving.memory_fraction",
        "'1.5' is above 1: write 1.5% or 0.015",
    ),
    "number for text": (f"{GOOD}name: 4090", 4, "name", "must be text, not '4090' (put it in quotes)"),
    "empty text": (f"{GOOD}name: ''", 4, "name", "must not be empty"),
    "no unit": (
        f"{GOOD}limits:\n  ttft: 500",
        5,
        "limits.ttft",
        "a duration needs its unit, as 500ms or 1.5s",
    ),
    "a list as limit": (
        f"{GOOD}limits:\n  ttft: [1]",
        5,
        "limits.ttft",
        "must be a duration with its unit (500ms), or a statistic and one (p95:500ms), not a list",
    ),
    "longest below mean": (
        "tokens:\n  isl: 10\n  osl: 1\n  isl_max: 5",
        2,
        "tokens",
        "isl_max (5) is below the mean isl (10): a maximum is at least the mean",
    ),
    "two demands": (
        f"{GOOD}demand:\n  concurrency: 5\n  requests_per_s: 1.0",
        4,
        "demand",
        "states 2 demands, requests_per_s and concurrency; state exactly one",
    ),
}


@pytest.mark.parametrize("case", BAD_FIELDS)
def test_a_bad_field_is_named_with_its_line_and_what_it_takes(tmp_path: Path, case: str) -> None:
    content, line, field, message = BAD_FIELDS[case]
    head = "\n" if content.startswith(GOOD) else "model: m\n"
    fault = only_fault(tmp_path, head + content + "\n")
    assert (fault.line, fault.field, fault.message) == (line, field, message)


def test_an_unknown_key_lists_the_known_ones_and_the_nearest(tmp_path: Path) -> None:
    fault = only_fault(tmp_path, "model: m\ntokens:\n  isl: 5\n  osl: 1\n  ols_max: 3\n")
    assert (fault.line, fault.field, fault.message) == (5, "tokens.ols_max", "unknown key")
    assert fault.allowed == "isl, osl, isl_max, osl_max, isl_std, osl_std"
    assert fault.nearest == "osl_max"


def test_an_unknown_choice_lists_the_choices_and_the_nearest(tmp_path: Path) -> None:
    fault = only_fault(tmp_path, f"{GOOD}mode: streamin\n")
    assert str(fault) == (
        f"{tmp_path}/w.yaml:3: mode: is not known: 'streamin'; allowed: streaming, sequential, offline; "
        "did you mean streaming?"
    )


def test_all_faults_come_in_one_run_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = "tokens:\n  isl: -1\n  osl: x\nmoddel: m\nkv_precision: fp7\nplanning: {objective: speed}\n"
    faults = faults_in(tmp_path, text)
    assert [(fault.line, fault.field) for fault in faults] == [
        (1, "model"),
        (2, "tokens.isl"),
        (3, "tokens.osl"),
        (4, "moddel"),
        (5, "kv_precision"),
        (6, "planning.objective"),
    ]
    assert not any("Input should" in str(fault) or "pydantic" in str(fault) for fault in faults)


def test_several_structural_faults_come_together(tmp_path: Path) -> None:
    faults = faults_in(tmp_path, f"{GOOD}name: &a x\nname: !t y\n")
    assert [fault.line for fault in faults] == [3, 4, 4]


def test_a_row_of_a_tagged_union_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    row = "operation: gemm, precision: fp8, t0_us: -1, compute: 0.8, memory: 0.9, p: 3.0"
    made = "engine: any, version: '1', source: s, date: '2025'"
    path = tmp_path / "g.yaml"
    path.write_text(f"efficiency:\n  - {{{row}, {made}, sped: 1}}\n  - {{operation: gem}}\n  - {{t0_us: 1}}\n")
    with pytest.raises(InputError) as caught:
        validate(Gpu, read_yaml(path))
    found = {fault.field: fault for fault in caught.value.faults if fault.field and "efficiency" in fault.field}
    assert {field: fault.line for field, fault in found.items()} == {
        "efficiency[0].t0_us": 2,
        "efficiency[0].sped": 2,
        "efficiency[1].operation": 3,
        "efficiency[2].operation": 4,
    }
    assert (
        found["efficiency[0].t0_us"].message == "must be a number of at least 0 and at most 1,000,000,000,000, not '-1'"
    )
    assert "t0_us" in found["efficiency[0].sped"].allowed
    assert found["efficiency[1].operation"].nearest == "gemm"
    assert found["efficiency[2].operation"].message == "is required"


def test_numbers_and_words_are_read_as_people_mean_them(tmp_path: Path) -> None:
    path = tmp_path / "v.yaml"
    path.write_text("a: 1e3\nb: 1.5E-2\nc: 2025-01-31\nd: off\ne: '1'\nf: 0.90\ng: -.5\nh: 1_000\ni: <<\nj: 5.\n")
    assert read_yaml(path).data == {
        "a": 1000.0,
        "b": 0.015,
        "c": "2025-01-31",
        "d": False,
        "e": "1",
        "f": 0.9,
        "g": -0.5,
        "h": "1_000",
        "i": "<<",
        "j": 5.0,
    }


def test_keys_are_text_whatever_they_look_like(tmp_path: Path) -> None:
    assert [fault.field for fault in faults_in(tmp_path, f"{GOOD}1: x\non: y\n")] == ["1", "on"]


def test_a_byte_order_mark_and_crlf_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert validate(Workload, read_yaml(path)).tokens.isl == 2000


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "workload.yaml").write_text(GOOD)
    with pytest.raises(InputError) as caught:
        read_yaml(tmp_path / "wrokload.yaml")
    assert str(caught.value) == f"{tmp_path}/wrokload.yaml: not found; did you mean {tmp_path}/workload.yaml?"
    with pytest.raises(InputError, match="there is no folder"):
        read_yaml(tmp_path / "nowhere" / "w.yaml")
    with pytest.raises(InputError, match="is a folder, not a file"):
        read_yaml(tmp_path)
    for name in ("x" * 5000 + ".yaml", "a\0b.yaml", str(tmp_path / "workload.yaml" / "w.yaml")):
        with pytest.raises(InputError):
            read_yaml(name)


def test_a_file_at_the_size_limit_is_read_and_one_above_is_not(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(GOOD + "#" * (MAX_FILE_BYTES - len(GOOD)))
    assert validate(Workload, read_yaml(path)).model == "m"
    path.write_text(GOOD + "#" * (MAX_FILE_BYTES - len(GOOD) + 1))
    with pytest.raises(InputError, match="is larger than 4 MiB"):
        read_yaml(path)


BAD_JSON = {
    "empty": ("", None, "is empty"),
    "cut off": ('{\n "a": 1,\n', 3, "is not valid JSON"),
    "a list": ("[1]", 1, "must hold an object at the top"),
    "key twice": ('{"a": 1, "a": 2}', None, "is given twice"),
    "depth": ("[" * 100_000, None, "is nested too deep"),
    "endless digits": ('{"a": ' + "9" * 5000 + "}", 1, "a number of 5,000 digits"),
    "binary": ('{"a": "\x00"}', 1, "is not text"),
    "half of a character": ('{"a": "\\ud83d\\ude00",\n "b": "\\ud800x"}', 2, "half of a character"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_bad_json_is_refused(tmp_path: Path, case: str) -> None:
    content, line, words = BAD_JSON[case]
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_json(path)
    assert caught.value.faults[0].line == line
    assert words in str(caught.value)


def test_json_lets_infinity_through_and_knows_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n  "time_step_limit": [0.0, Infinity],\n\t"text_config": {\n    "hidden_size": 8\n  }\n}\n')
    document = read_json(path)
    assert document.data["time_step_limit"] == [0.0, float("inf")]
    assert document.line(("text_config", "hidden_size")) == 4
    assert document.line_of_key("hidden_size") == 4
    assert document.line(("text_config", "absent")) == 3


def test_lines_are_found_only_on_demand() -> None:
    document = DataFile({"a": 1}, "f", "a: 1\n")
    assert "_spots" not in vars(document)
    assert document.line(("a",)) == 1
    assert "_spots" in vars(document)


LINES = st.sampled_from(
    """model: m|tokens: {isl: 5, osl: 2}|tokens:|  isl: 1e9|  osl: [|demand: {concurrency: 1}|- x
limits: {ttft: 1s}|limits: {itl: {p95: 2}}|a: &b 1|c: *b|? x|{|}|---|...|'|mode: 3|precision: fp8
planning: {headroom: 20%}
planning: {max_utilisation: x}|%YAML 1.1|<<: {a: 1}|\t""".replace("\n", "|").split("|")
)


def reads_or_refuses(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert isinstance(validate(Workload, read_yaml(path)), Workload)
    with contextlib.suppress(InputError):
        assert isinstance(read_json(path), DataFile)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bytes")


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(scratch: Path, content: bytes) -> None:
    reads_or_refuses(scratch, content)


@settings(max_examples=200, deadline=None)
@given(content=st.text(max_size=200))
def test_any_text_is_read_or_refused(scratch: Path, content: str) -> None:
    reads_or_refuses(scratch, content.encode("utf-8", "surrogatepass"))


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(LINES, max_size=10), inner=st.text(max_size=10))
def test_any_mixture_of_plausible_lines_is_read_or_refused(scratch: Path, lines: list[str], inner: str) -> None:
    text = "\n".join([*lines, inner])
    reads_or_refuses(scratch, text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "text", ['a: "caf\\u00e9 \u2028 x"\nb: "\x85 y"\nc: {}\n', '{\n"a": "\\ud83d\\ude00",\n"c": {}}\n']
)
def test_lines_are_those_of_an_editor(text: str) -> None:
    """YAML ends lines at three more characters, and knows no pairs of escapes; neither moves or loses a line."""
    assert spots(text, "file")[("c",)].line == 3


def test_a_file_is_written_where_the_system_has_no_such_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no O_NONBLOCK, and no set_blocking for files."""
    monkeypatch.delattr(os, "O_NONBLOCK", raising=False)
    monkeypatch.delattr(os, "set_blocking", raising=False)
    write_bytes(tmp_path / "k.yaml", b"a: 1\n")
    assert (tmp_path / "k.yaml").read_bytes() == b"a: 1\n"
