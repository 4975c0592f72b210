"""Schemas: shipped files and printed results keep to them, and what a version promises stays."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import write_schemas
from places import ROOT

from sizing.catalog.files import read_yaml
from sizing.cli.main import run
from sizing.report.schemas import PRINTED, RESULT, names, schema, versions
from sizing.specs.units import parse_duration_s

jsonschema = pytest.importorskip("jsonschema")
FOLDERS = {
    "workload": "workloads/traffic", "fleet": "workloads/fleets", "gpu": "hardware_profiles/gpus", "model": "workloads/models",
    "engine": "hardware_profiles/engines", "server": "hardware_profiles/servers",
}  # fmt: skip
LINE = "# yaml-language-server: $schema=../../schemas/{}.json"
RESULTS = sorted((ROOT / "tests" / "golden").glob("*/*/out.json"))


def shipped(name: str) -> list[Path]:
    return [path for path in sorted((ROOT / FOLDERS[name]).glob("*.yaml")) if not path.name.startswith("_")]


@cache
def checker(name: str) -> Any:
    return jsonschema.Draft202012Validator(schema(name))


def findings(name: str, data: object) -> list[str]:
    return [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message:.200}" for error in checker(name).iter_errors(data)
    ]


@pytest.mark.parametrize("name", names())
def test_a_schema_is_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", name]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema(name)
    jsonschema.Draft202012Validator.check_schema(printed)


@pytest.mark.parametrize("name", FOLDERS)  # no deployment is shipped
def test_shipped_files_keep_to_their_schema_and_name_it(name: str) -> None:
    assert shipped(name)
    for path in shipped(name):
        assert findings(name, read_yaml(path).data) == [], path
        assert path.read_text(encoding="utf-8").startswith(LINE.format(name) + "\n"), path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": {"isl": 0, "osl": 5}}, "isl"),
        ({"tokens": {"isl": 5}}, "osl"),
        ({"modus": "offline"}, "modus"),
        ({"mode": "batch"}, "batch"),
        ({"demand": {"requests_per_s": "many"}}, "many"),
        ({"serving": {"tp": 2.5}}, "2.5"),
        ({"limits": {"ttft": {"p95": "1s", "p99": "2s"}}}, "p99"),
        ({"limits": {"ttft": 500}}, "500"),
    ],
)
def test_a_wrong_workload_is_found(change: dict[str, Any], words: str) -> None:
    plain = {"model": "llama-3.1-8b", "tokens": {"isl": 5, "osl": 5}}
    assert findings("workload", plain) == []
    found = findings("workload", plain | change)
    assert found
    assert any(words in line for line in found)


@pytest.mark.parametrize(
    "change",
    [
        {"demand": {"requests_per_s": "2..5"}},
        {"demand": {"requests_per_s": "1.5k"}},
        {"demand": {"requests_per_s": "1,000"}},
        {
            "demand": {
                "sessions": {"concurrent_users": "100..300", "requests_per_session": 3, "session_length": "10min"}
            }
        },
        {"limits": {"ttft": "p95:500ms", "itl": {"p99": "50ms"}}},
        {"planning": {"max_utilisation": "80%", "headroom": 0.2, "profile": [1.0] * 24}},
        {"gpu": "h100-sxm"},
        {"gpu": ["h100-sxm", "h200-sxm"]},
        {"optimisations": {"speculative": "eagle3:3@0.75", "lora": "16x64", "prefix": {"hit": 0.5}}},
    ],
)
def test_what_is_read_in_several_forms_is_allowed_in_each(change: dict[str, Any], tmp_path: Path) -> None:
    """The schema allows what the program reads."""
    data = {"model": "llama-3.1-8b", "tokens": {"isl": 5, "osl": 5}} | change
    assert findings("workload", data) == []
    (tmp_path / "w.yaml").write_text(json.dumps(data), encoding="utf-8")
    from sizing.catalog.workloads import load_workload

    assert load_workload(str(tmp_path / "w.yaml")).spec.tokens.isl == 5
    assert parse_duration_s("500ms") == 0.5


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.parent.name}-{path.parent.name}")
def test_a_result_keeps_to_its_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if text.strip():
        result = json.loads(text)
        name = next((one for one in PRINTED if result["schema"] in ids(one)), None)
        assert name is not None, f"PRINTED of report/schemas.py names no record of {result['schema']}"
        assert findings(name, result) == []


@cache
def ids(name: str) -> frozenset[str]:
    found = schema(name)
    return frozenset(each["properties"]["schema"]["const"] for each in found.get("anyOf", (found,)))


def test_a_result_without_a_field_is_found() -> None:
    result = json.loads((ROOT / "tests/golden/estimate").joinpath(sorted(path.parent.name for path in RESULTS if path.parent.parent.name == "estimate")[0], "out.json").read_text(encoding="utf-8"))  # fmt: skip
    del result["feasible"]
    assert findings("estimate", result)
    assert findings(RESULT, result)


def test_what_a_version_promises_stays() -> None:
    frozen = json.loads(write_schemas.FROZEN.read_text(encoding="utf-8"))
    assert write_schemas.gone(frozen, write_schemas.shapes()) == [], "this needs a new version of the schema"
    assert {version for version, _ in versions()} >= set(frozen)


def test_a_change_is_seen() -> None:
    """A field that goes, takes other values or must be given is gone from the shape."""
    before = {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["b"]}
    for after in (
        {"properties": {"b": {"enum": ["x", "y"]}}, "required": ["b"]},
        {"properties": {"a": {"type": "string"}, "b": {"enum": ["x", "y"]}}, "required": ["b"]},
        {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}}, "required": ["b"]},
        {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]},
    ):
        assert write_schemas.gone({"v": write_schemas.shape(before)}, {"v": write_schemas.shape(after)})
    more = {"properties": {**before["properties"], "c": {"type": "string"}}, "required": ["b"]}
    assert write_schemas.gone({"v": write_schemas.shape(before)}, {"v": write_schemas.shape(more)}) == []


def test_the_schemas_of_editors_are_those_of_now() -> None:
    for path, text in write_schemas.files().items():
        assert path.read_text(encoding="utf-8") == text, "python tests/write_schemas.py writes them anew"


def test_a_schema_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "workloda"]) == 2
    assert "'workloda' has no schema; allowed: workload, fleet" in capsys.readouterr().err
    assert run(["schema"]) == 2
    assert "NAME: is needed" in capsys.readouterr().err
