"""The action, the GitLab job and the pre-commit hook do what they say: their shell steps run here."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

ACTION = ROOT / ".github" / "actions" / "llmsize-check" / "action.yml"
JOB = ROOT / ".gitlab" / "llmsize-check.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
MANIFEST = ROOT / "tests" / "golden" / "inputs" / "deploy.yaml"
INPUT = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a manifest, and with the command on the path."""
    (tmp_path / "deploy.yaml").write_bytes(MANIFEST.read_bytes())
    command = tmp_path / "bin" / "llmsize"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sizing "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return tmp_path


def bash(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=folder, env=whole, capture_output=True, text=True
    )


def checked(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The check step of the action with its inputs."""
    action: Any = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    values = {name: stated.get("default", "") for name, stated in action["inputs"].items()} | inputs
    (step,) = [step for step in action["runs"]["steps"] if step.get("id") == "check"]
    env = {name: INPUT.sub(lambda found: values[found[1]], text) for name, text in step["env"].items()}
    outside = {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return bash(step["run"], folder, **env, **outside)


def test_the_action_annotates_and_keeps_its_result(folder: Path) -> None:
    run = checked(folder, files="deploy.yaml", demand="chat", arguments="--no-verify")
    assert run.returncode == 0 and run.stdout.strip() == "chat: passes", run.stderr
    assert (folder / "output").read_text(encoding="utf-8") == "result=llmsize-check.json\n"
    old = json.loads((folder / "llmsize-check.json").read_text(encoding="utf-8"))
    assert old["passed"]
    (folder / "llmsize-check.json").rename(folder / "old.json")
    more = "--no-verify --set demand.requests_per_s=500"
    run = checked(folder, files="deploy.yaml", demand="chat", arguments=more, baseline="old.json")
    assert run.returncode == 1 and "::error file=deploy.yaml,line=5,title=chat%3A demand::" in run.stdout
    table = (folder / "summary.md").read_text(encoding="utf-8").splitlines()
    assert table[0].startswith("| deployment | figure |") and all(row.count("|") <= 7 for row in table)


def test_files_and_arguments_of_the_action_may_stand_on_lines_of_their_own(folder: Path) -> None:
    (folder / "other.yaml").write_bytes(MANIFEST.read_bytes().replace(b"replicas: 5", b"replicas: 1"))
    run = checked(folder, files="deploy.yaml\nother.yaml\n", demand="chat", arguments="--no-verify\n--max-gpus 100\n")
    assert run.returncode == 1 and run.stdout.splitlines()[-2:] == ["chat: passes", "chat: fails demand, ttft, itl"], (
        run.stdout
    )


def test_the_action_tells_bad_input_from_a_failure(folder: Path) -> None:
    run = checked(folder, files="missing.yaml", demand="chat")
    assert run.returncode == 2 and "::error file=missing.yaml" in run.stdout and not (folder / "output").exists()


def test_inputs_of_the_action_are_never_part_of_a_script() -> None:
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    assert all("${{" not in step["run"] for step in action["runs"]["steps"])


def test_the_gitlab_job_writes_its_report(folder: Path) -> None:
    job = yaml.safe_load(JOB.read_text(encoding="utf-8"))["llmsize-check"]
    run = bash("\n".join(job["script"]), folder, **{**job["variables"], "CAPACITY_ARGUMENTS": "--no-verify"})
    assert run.returncode == 0, run.stderr
    report = folder / job["artifacts"]["reports"]["junit"]
    assert 'failures="0"' in report.read_text(encoding="utf-8")


def test_the_hook_checks_the_files_that_it_is_given(folder: Path) -> None:
    (hook,) = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))
    assert [bool(re.search(hook["files"], name)) for name in ("k8s/deploy.yaml", "values-prod.yml", "workload.yaml")] == [True, True, False]  # fmt: skip
    run = bash(f"{hook['entry']} --demand chat --no-verify deploy.yaml", folder)
    assert run.returncode == 0 and "chat: passes" in run.stdout, run.stderr
