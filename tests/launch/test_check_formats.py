"""Formats of `llmsize check`: JUnit, SARIF, annotations, and what changed since a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from check_commands import CHAT, FIXED, OWN
from places import ROOT

from sizing.cli.main import run


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(["check", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("rate", ["20", "500"])
def test_junit_is_valid(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    etree = pytest.importorskip("lxml.etree")
    schema = etree.XMLSchema(etree.parse(str(ROOT / "tests" / "data" / "junit.xsd")))
    code, out = said(capsys, FIXED, *CHAT, "--set", f"demand.requests_per_s={rate}", "--format", "junit", "--no-verify")
    schema.assertValid(etree.fromstring(out.encode("utf-8")))
    suite = ElementTree.fromstring(out)[0]
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure")) == 3 * code
    assert {"demand", "ttft", "itl"} <= {case.attrib["name"] for case in suite.findall("testcase")}  # at any demand


def test_what_is_not_judged_is_skipped_in_junit(capsys: pytest.CaptureFixture[str]) -> None:
    policy = ("--max-usd-per-million-tokens", "2", "--set", "demand.requests_per_s=500")
    _, out = said(capsys, FIXED, *CHAT, *policy, "--format", "junit", "--no-verify")
    cases = {case.attrib["name"]: case for case in ElementTree.fromstring(out)[0].findall("testcase")}
    skipped = cases["max_usd_per_million_tokens"].find("skipped")
    assert skipped is not None and "the demand is not served" in skipped.attrib["message"]
    assert cases["demand"].find("failure") is not None and sum(len(case) for case in cases.values()) == 4


def test_sarif_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "tests" / "data" / "sarif.json").read_text(encoding="utf-8"))
    path = tmp_path / "a file.sh"
    path.write_text("vllm serve llama-3.1-8b --max-num-seq 3\n", encoding="utf-8")
    for file, more, code in (
        (FIXED, (), 0),
        (FIXED, ("--set", "demand.requests_per_s=500"), 1),
        (str(path), ("-g", "l4"), 2),
    ):
        found, out = said(capsys, file, *CHAT, *more, "--format", "sarif", "--no-verify")
        jsonschema.validate(json.loads(out), schema)
        assert found == code


def test_sarif_points_at_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, FIXED, *CHAT, "--set", "demand.requests_per_s=500", "--format", "sarif", "--no-verify")
    content = json.loads(out)
    (run_,) = content["runs"]
    rules = {rule["id"] for rule in run_["tool"]["driver"]["rules"]}
    assert code == 1 and content["version"] == "2.1.0" and content["$schema"].endswith("sarif-2.1.0.json")
    assert all(result["ruleId"] in rules and result["message"]["text"] for result in run_["results"])
    failed = [result for result in run_["results"] if result["level"] == "error"]
    assert [result["ruleId"] for result in failed] == ["demand", "ttft", "itl"]
    lines = Path(FIXED).read_text(encoding="utf-8").splitlines()
    regions = [result["locations"][0]["physicalLocation"]["region"] for result in failed]
    assert [lines[region["startLine"] - 1].strip() for region in regions] == ["replicas: 5"] * 3


def test_bad_input_is_annotated_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.sh"
    path.write_text("vllm serve llama-3.1-8b \\\n  --max-num-seq 3\n", encoding="utf-8")
    code = run(["check", str(path), *CHAT, "-g", "l4", "--replicas", "1", "--format", "github"])
    captured = capsys.readouterr()
    assert code == 2 and f"::error file={path},line=2," in captured.out
    assert "did you mean --max-num-seqs?" in captured.err
    assert "::--max-num-seq: is not known of vLLM" in captured.out and "did you mean --max-num-seqs?" in captured.out
    line = "vllm serve llama-3.1-8b --max-num-seq 3"
    assert run(["check", line, *CHAT, "-g", "l4", "--replicas", "1", "--format", "github"]) == 2
    assert capsys.readouterr().out.startswith(
        "::error title=input%3A input::--max-num-seq"
    )  # a command line is no file


def test_deployments_of_one_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.yaml"
    one = OWN[OWN.index("- name") : OWN.index("demand:")].replace("  reserved_gpus: 1\n", "")
    path.write_text(OWN.replace("  reserved_gpus: 1\n", one).replace("policy: {max_gpus: 8}", ""), encoding="utf-8")
    code, out = said(capsys, str(path), "--format", "github", "--no-verify")
    assert (code, out) == (0, "chat: passes\nchat: passes\n")
    assert len(ElementTree.fromstring(said(capsys, str(path), "--format", "junit", "--no-verify")[1])) == 2


def test_a_baseline_says_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.json"
    old.write_text(said(capsys, FIXED, *CHAT, "--json", "--no-verify")[1], encoding="utf-8")
    more = tmp_path / "k.yaml"
    more.write_text(Path(FIXED).read_text(encoding="utf-8").replace("replicas: 5", "replicas: 6"), encoding="utf-8")
    code, out = said(capsys, str(more), *CHAT, "--baseline", str(old), "--format", "markdown", "--no-verify")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines()]
    assert code == 0 and all(len(row) <= 6 for row in rows)
    assert ["chat", "GPUs", "10", "12", "+20.0%"] in rows
    assert [row[1] for row in rows[2:]] == ["GPUs", "$ an hour", "$ per million output tokens", "most requests/s", "share used", "TTFT, ms", "ITL, ms", "E2E, ms"]  # fmt: skip


def test_what_is_alike_is_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.json"
    old.write_text(said(capsys, FIXED, *CHAT, "--json", "--no-verify")[1], encoding="utf-8")
    again = json.loads(said(capsys, FIXED, *CHAT, "--baseline", str(old), "--json", "--no-verify")[1])
    assert [change["change"] for change in again["changes"]] == [0] * 8
    text = said(capsys, FIXED, *CHAT, "--baseline", str(old), "--no-verify")[1]
    assert text.count("same") == 8 and "0.0%" not in text
