"""Settings: which layer counts, where a wrong one is named, and what a workload and options say over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from sizing.cli.main import run
from sizing.cli.options import SETTINGS

MODEL = ("-m", "llama-3.1-8b", "--isl", "900", "--osl", "100")
ESTIMATE = ("estimate", *MODEL, "--rps", "9", "--no-verify")
Answer = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder below that of a project, with a user's folder beside it."""
    folder = tmp_path / "project" / "src"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LLMSIZE_HOME", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    return folder.parent


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    def inputs(*arguments: str) -> dict[str, Any]:
        assert run([*arguments, "--json"]) in (0, 1), capsys.readouterr().err
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["inputs"]
        return found

    return inputs


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 2
    return capsys.readouterr().err


def test_an_empty_variable_takes_back_what_files_say(
    project: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = answer(*ESTIMATE, "-g", "h100-sxm")["max_utilisation"]
    (project / "llmsize.yaml").write_text("max_utilisation: 31%\n")
    assert answer(*ESTIMATE, "-g", "h100-sxm")["max_utilisation"] == 0.31
    monkeypatch.setenv("LLMSIZE_MAX_UTILISATION", "")
    assert answer(*ESTIMATE, "-g", "h100-sxm")["max_utilisation"] == before
    assert run(["config", "--json"]) == 0
    assert {row["in_force"] for row in json.loads(capsys.readouterr().out)["settings"]} == {False}
    monkeypatch.setenv("LLMSIZE_MAX_UTILIZASION", "")
    assert "did you mean LLMSIZE_MAX_UTILISATION?" in refused(capsys, *ESTIMATE)


def test_each_layer_gives_way_to_the_next(project: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    def utilisation(*options: str) -> float:
        return float(answer(*ESTIMATE, "-g", "h100-sxm", *options)["max_utilisation"])

    assert utilisation() not in (0.3, 0.4, 0.5, 0.6)
    (project.parent / "user" / "llmsize.yaml").write_text("max_utilisation: 30%\n")
    assert utilisation() == 0.3
    (project / "pyproject.toml").write_text("[tool.llmsize]\nmax-utilisation = 0.4\n")
    assert utilisation() == 0.4
    monkeypatch.setenv("LLMSIZE_MAX_UTILISATION", "50%")
    assert utilisation() == 0.5
    (project / "w.yaml").write_text(
        "model: llama-3.1-8b\ntokens: {isl: 900, osl: 100}\nplanning: {max_utilisation: 60%}\n"
    )
    of_file = ("estimate", str(project / "w.yaml"), "-g", "h100-sxm", "--no-verify", "--rps", "9")
    assert answer(*of_file)["max_utilisation"] == 0.6
    assert answer(*of_file, "--set", "planning.max_utilisation=0.7")["max_utilisation"] == 0.7
    assert answer(*of_file, "--max-utilisation", "0.8")["max_utilisation"] == 0.8


def test_the_nearest_file_counts_alone(project: Path, answer: Answer) -> None:
    (project / "llmsize.yaml").write_text("gpu: l40s\nengine: sglang\n")
    (project / "pyproject.toml").write_text("[tool.llmsize]\ngpu = 'a100-sxm-80gb'\n")
    assert answer(*ESTIMATE)["gpu_ids"] == ["l40s"]
    (project / "src" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert answer(*ESTIMATE)["engine"] == "sglang"
    (project / "src" / "llmsize.yaml").write_text("gpu: [h100-sxm, h200-sxm]\n")
    found = answer(*ESTIMATE)
    assert (found["gpu_ids"], found["engine"]) == (["h100-sxm", "h200-sxm"], "vllm")


def test_one_file_can_be_named_or_none(project: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "llmsize.yaml").write_text("gpu: l40s\n")
    (project / "other.yaml").write_text("# what counts here\ngpu: h100-sxm\n")
    monkeypatch.setenv("LLMSIZE_CONFIG", str(project / "other.yaml"))
    assert answer(*ESTIMATE)["gpu_ids"] == ["h100-sxm"]
    monkeypatch.setenv("LLMSIZE_CONFIG", "none")
    assert len(answer(*ESTIMATE)["gpu_ids"]) > 2


def test_a_file_of_comments_sets_nothing(project: Path, answer: Answer) -> None:
    (project / "llmsize.yaml").write_text("# gpu: l40s\n\n")
    assert len(answer(*ESTIMATE)["gpu_ids"]) > 2


def test_what_a_workload_says_wins_as_a_whole(project: Path, answer: Answer) -> None:
    (project / "llmsize.yaml").write_text("rps: 5\nprecision: fp16\nitl: 1s\nactive_hours: 3\n")
    chat = answer("estimate", "chat", "-g", "h100-sxm", "--no-verify")
    assert chat["demand"]["kind"] == "daily_active_users"
    assert chat["demand"]["active_hours"] == 3
    assert chat["weight_precision"] == "fp8"
    assert chat["limits"]["itl_ms"]["ms"] == 50.0
    plain = answer("estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "900", "--osl", "100", "--no-verify")
    assert (plain["demand"]["requests_per_s"], plain["weight_precision"]) == (5.0, "fp16")


def test_an_option_takes_the_place_of_what_says_the_same(
    project: Path, answer: Answer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "llmsize.yaml").write_text("rps: 5\nconservative: true\nprofile: office\nformat: csv\ngpu: h100-sxm\n")
    found = answer("estimate", *MODEL, "--no-verify", "--dau", "90000", "--active-hours", "4", "--confidence", "70%")
    assert found["demand"]["kind"] == "daily_active_users"
    assert (found["demand"]["active_hours"], found["demand"]["profile"]) == (4, None)
    assert (
        answer("compare", *MODEL, "--no-verify", "--jobs", "1", "--set", "demand.concurrency=9")["demand"][
            "concurrency"
        ]
        == 9
    )
    assert run([*ESTIMATE, "-q"]) == 0
    assert capsys.readouterr().out.strip().isdecimal()


def test_a_setting_without_effect_waits(project: Path, answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    """An option without effect is refused; a setting is for every command, and not each has a use for it."""
    (project / "llmsize.yaml").write_text("ttft: 1s\nprefix_hit: 50%\nseed: 3\ngpu: h100-sxm\nrequests_per_user: 4\n")
    assert answer(*ESTIMATE, "--mode", "offline")["mode"] == "offline"
    (project / "llmsize.yaml").write_text("price: h100-sxm=2.5,h200-sxm=3\ngpu: h100-sxm\nturns: 3\n")
    assert answer(*ESTIMATE, "--isl-max", "9000")["gpu_ids"] == ["h100-sxm"]
    for command in (("memory", "-m", "llama-3.1-8b"), ("step", "-m", "llama-3.1-8b", "--prefill", "64")):
        assert run(list(command)) == 0, capsys.readouterr().err
    assert "has no meaning for offline work" in refused(capsys, *ESTIMATE, "--mode", "offline", "--itl", "9ms")


def test_what_varies_or_is_replaced_has_no_setting(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "llmsize.yaml").write_text("rps: 5\nisl: 700\nosl: 100\nmodel: llama-3.1-8b\ngpu: h100-sxm\n")
    assert run(["sweep", "--vary", "isl=500,900", "--vary", "users=100,200", "--jobs", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["isl"], row["users"]) for row in rows] == [(500, 100), (500, 200), (900, 100), (900, 200)]
    assert run(["compare", "--replace", "2xh100-sxm", "-g", "h200-sxm", "--no-verify", "--jobs", "1"]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\ngpuu: l40s", "llmsize.yaml:2: gpuu: is no setting; allowed: an option's long name"),
        ("gpuu: l40s", "did you mean gpu?"),
        ("set: tokens.isl=5", "llmsize.yaml:1: set: is no setting"),
        ("tp: two", "llmsize.yaml:1: tp: 'two' is no whole number"),
        ("tp: [1, {a: 2}]", "llmsize.yaml:1: tp: states no value of an option"),
        ("gpu:", "llmsize.yaml:1: gpu: states no value of an option"),
        ("no_verify: perhaps", "llmsize.yaml:1: no_verify: 'perhaps' is neither yes nor no"),
        ("gpu: h100-smx", "llmsize.yaml:1: gpu: unknown GPU 'h100-smx'"),
        ("gpu: l40s\nitl: 40", "llmsize.yaml:2: itl: "),
        ("gpu: [", "llmsize.yaml:2: is not valid YAML"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(
    text: str, words: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "llmsize.yaml").write_text(f"{text}\n")
    assert words in refused(capsys, *ESTIMATE)


def test_a_wrong_table_of_a_project_is_named_with_its_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text('[project]\ngpu = "x"\n[tool.llmsize]\n# mine\ntp = 2\ngpuu = "l40s"\n')
    assert "pyproject.toml:6: gpuu: is no setting" in refused(capsys, *ESTIMATE)
    (project / "pyproject.toml").write_text("[tool.llmsize]\ntp = \n")
    assert "pyproject.toml: is not valid TOML" in refused(capsys, *ESTIMATE)
    (project / "pyproject.toml").write_text("[tool]\nllmsize = 3\n")
    assert "pyproject.toml" in refused(capsys, "config")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("LLMSIZE_GPU", "h100-smx", "llmsize: LLMSIZE_GPU: unknown GPU"),
        ("LLMSIZE_GPUU", "l40s", "LLMSIZE_GPUU: is no setting; use llmsize config --all; did you mean LLMSIZE_GPU?"),
        ("LLMSIZE_TP", "x", "LLMSIZE_TP: 'x' is no whole number"),
        ("LLMSIZE_CONFIG", "/no/such.yaml", "LLMSIZE_CONFIG: /no/such.yaml: not found"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named(
    variable: str, value: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert words in refused(capsys, *ESTIMATE)


def test_every_setting_is_read_as_its_option_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from sizing.question.configuration import configuration

    words = {"bool": "true", "bool | None": "no"}
    environment = {f"LLMSIZE_{option.name.upper()}": words.get(_kind(option.type), "2") for option in SETTINGS}
    found = configuration(SETTINGS, Path("/"), environment).in_force
    assert set(found) == {option.name for option in SETTINGS}
    assert (found["tp"].value, found["rps"].value, found["price"].value) == (2, 2.0, 2.0)
    assert (found["json"].value, found["prefix_caching"].value, found["gpu"].value) == (True, False, "2")


def _kind(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def test_config_shows_what_comes_from_where(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "llmsize.yaml").write_text("# ours\ngpu: l40s\nitl: 40ms\n")
    monkeypatch.setenv("LLMSIZE_GPU", "h100-sxm")
    assert run(["config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    file = str(project / "llmsize.yaml")
    assert [tuple(row.values()) for row in found["settings"]] == [
        ("gpu", "h100-sxm", "environment", "LLMSIZE_GPU", True),
        ("gpu", "l40s", "project file", f"{file}:2: gpu", False),
        ("itl", "40ms", "project file", f"{file}:3: itl", True),
    ]
    assert [row["path"] for row in found["files"]][1] == file
    assert run(["config", "--all", "--json"]) == 0
    options = {row["option"]: row for row in json.loads(capsys.readouterr().out)["options"]}
    assert options["gpu"]["variable"] == "LLMSIZE_GPU"
    assert options["gpu"]["value"] == "h100-sxm"
    assert len(options) == len(SETTINGS)
    monkeypatch.setenv("LLMSIZE_X", "1")  # a fault says to look at the list, which is then still written
    assert run(["config", "--all"]) == 2
    said = capsys.readouterr()
    assert "LLMSIZE_GPU" in said.out and "LLMSIZE_X: is no setting; use llmsize config --all" in said.err


def test_own_profiles_are_known_by_name(project: Path, answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    own = project.parent / "user"
    for folder in ("gpus", "workloads"):
        (own / folder).mkdir()
    shipped = (ROOT / "hardware_profiles" / "gpus" / "h100-sxm.yaml").read_text(encoding="utf-8")
    _, _, rest = shipped.partition("\naliases:")
    (own / "gpus" / "lab-h100.yaml").write_text(
        f"# ours\nname: Lab H100\naliases: [lab]{rest[rest.index(chr(10)) :]}", encoding="utf-8"
    )
    (own / "workloads" / "desk.yaml").write_text(
        "model: llama-3.1-8b\ntokens: {isl: 900, osl: 100}\ndemand: {requests_per_s: 9}\n"
    )
    assert answer("estimate", "desk", "-g", "lab", "--no-verify")["gpu_ids"] == ["lab-h100"]
    assert run(["gpus"]) == 0
    assert "lab-h100" in capsys.readouterr().out
    (own / "gpus" / "h200-sxm.yaml").write_text(shipped, encoding="utf-8")
    said = refused(capsys, *ESTIMATE, "-g", "h200-sxm")
    assert "h200-sxm.yaml: --gpu: has the name of a GPU that is known already" in said
    assert "use another name, as my-h200-sxm.yaml" in said


def test_an_own_profile_is_checked_as_a_named_file_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = project.parent / "user" / "gpus"
    own.mkdir()
    shipped = (ROOT / "hardware_profiles" / "gpus" / "l40s.yaml").read_text(encoding="utf-8")
    (own / "odd.yaml").write_text(
        shipped.replace("name: L40S", "name: Odd")
        .replace("architecture: ada", "architecture: adda")
        .replace("aliases: [", "aliases: [odd, ")
        .replace("efficiency:", "unknown:"),
        encoding="utf-8",
    )
    assert "unknown key" in refused(capsys, *ESTIMATE, "-g", "odd")
