"""`llmsize plan` on fleets: GPUs shared, moves, and what a fleet's file may not say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan_commands import CALLS, FLEET, json_of, out_of

from sizing.catalog.fleets import SHELF, find_fleet
from sizing.cli.main import run

# --- fleets ---------------------------------------------------------------------------------------------------------


def test_a_fleet_shares_its_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "plan", FLEET, "--no-verify")
    fleet = found["fleet"]
    assert len(found["workloads"]) == 3 and len(found["hours"]) == 168
    assert fleet["peak_of_sums_gpus"] == found["gpus"] < fleet["sum_of_peaks_gpus"]
    assert fleet["sum_of_peaks_gpus"] == sum(one["gpus"] for one in found["workloads"])
    assert fleet["peak_of_sums_requests_per_s"] < fleet["sum_of_peaks_requests_per_s"]
    (pool,) = found["pools"]
    assert pool["gpus"] == max(hour["gpus"] for hour in found["hours"])
    assert pool["installed_gpus"] == 8 * pool["nodes"] >= pool["gpus"]


def test_a_move_says_what_changes(capsys: pytest.CaptureFixture[str]) -> None:
    now = json_of(capsys, "plan", FLEET, "--no-verify")
    found = json_of(capsys, "plan", FLEET, "--no-verify", "--move", "assistant=h200-sxm,nightly=h100-sxm")
    away, same = found["moves"]
    assert found["gpus"] == now["gpus"]
    assert away["gpu_to"] == "H200 SXM 141GB" and away["feasible"]
    assert (same["gpus"], same["nodes"], same["usd_per_month"]) == (
        now["gpus"],
        now["nodes"],
        same["usd_per_month_now"],
    )


def test_a_fleet_of_one_is_its_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("fleet:\n  - {workload: call-centre, gpu: h100-sxm}\nplanning: {spare: 1, headroom: 20%}\n")
    fleet = json_of(capsys, "plan", str(path), "--no-verify")
    one = json_of(capsys, *CALLS, "--spare", "1", "--headroom", "20%")
    assert [fleet[key] for key in ("gpus", "replicas", "nodes")] == [one[key] for key in ("gpus", "replicas", "nodes")]
    more = json_of(capsys, "plan", str(path), "--no-verify", "--spare", "2")
    assert more["replicas"] == fleet["replicas"] + 1


@pytest.mark.parametrize("name", SHELF.ids)
def test_ready_fleets_are_read(name: str) -> None:
    found = find_fleet(name)
    assert found is not None and found.spec.source
    assert find_fleet(f"{name}.yaml") is not None
    assert find_fleet("chat") is None


# --- exit codes and faults --------------------------------------------------------------------------------------------


def test_faults_of_a_fleet_have_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "fleet:\n"
        "  - name: a\n"
        "    workload:\n"
        "      model: llama-3.1-8bb\n"
        "      tokens: {isl: 9, osl: 9}\n"
        "      demand: {requests_per_s: 3}\n"
        "    gpu: h101\n"
        "  - workload: chat\n"
        "    gpu: h100-sxm\n"
    )
    assert run(["plan", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"{path}:4: fleet[0].model: unknown model" in err
    assert f"{path}:7: fleet[0].gpu: unknown GPU 'h101'" in err
    path.write_text("fleet:\n  - workload: chatt\n  - {workload: chat, pool: sharde}\nplanning: {spare: -1}\n")
    assert run(["plan", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"{path}:2: fleet[0].workload: unknown workload 'chatt'" in err
    assert f"{path}:3: fleet[1].pool: is not known: 'sharde'" in err
    assert f"{path}:4: planning.spare: must be a whole number" in err


FLEET_FAULTS = {
    "fleet: []": ":1: fleet: must be a list of 1 to 100 workloads, not of 0",
    "fleet: [{workload: ./fleet.yaml}]": ":1: fleet[0].workload: './fleet.yaml' is a fleet itself",
    "fleet: [{workload: assistant-and-search}]": "is a fleet itself; allowed: a workload: fleets do not nest",
    "fleet: [{workload: rag}]\nplanning:\n  mtbf: 5y": ":3: planning.mtbf: one of the two is missing",
    "fleet: [{workload: rag}]\nplanning:\n  until: 2027-01": ":3: planning.until: has no meaning without growth",
    "fleet: [{workload: rag}]\nplanning:\n  failures: node": ":3: planning.failures: has no meaning without --avail",
    "fleet: [{workload: rag, gpu: h100-sxm}]\nplanning:\n  cloud: awss": ":3: planning.cloud: no on-demand price",
    "fleet: [{workload: rag}]\nplanning:\n  start: 2027-01": "growth, from, until",
    "fleet:\n - gpu: h100-sxm\n   workload:\n    model: llama-3.1-8b\n    tokens: {isl: 9, osl: 9}\n    demand:\n"
    "     requests_per_s: 5..2": ":7: fleet[0].workload.demand.requests_per_s: 5..2 is no range",
}


@pytest.mark.parametrize("text", FLEET_FAULTS)
def test_what_is_wrong_in_a_fleet_is_one_line_at_its_place(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(f"{text}\n")
    assert run(["plan", str(path)]) == 2
    err = capsys.readouterr().err
    assert FLEET_FAULTS[text] in err and len(err.splitlines()) == 1 and str(path) in err


def test_all_unknown_names_of_a_fleet_come_out_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("fleet:\n  - {workload: chatt, profile: offfice}\n  - {workload: rag, gpu: h101}\n")
    assert run(["plan", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"{path}:2: fleet[0].workload: unknown workload 'chatt'" in err
    assert f"{path}:2: fleet[0].profile: unknown load profile 'offfice'" in err
    assert f"{path}:3: fleet[1].gpu: unknown GPU 'h101'" in err


def test_fleets_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert [FLEET, "3 workloads", None, None, "fleet"] in [row[:5] for row in json_of(capsys, "workloads")["rows"]]
    assert "workload chat" in out_of(capsys, "workloads", FLEET)
    assert run(["estimate", FLEET]) == 2
    assert f"{FLEET!r} is a fleet of several workloads; use llmsize plan" in capsys.readouterr().err


def test_a_fleet_is_planned_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("fleet:\n  - {workload: chat, gpu: h100-sxm}\n")
    assert run(["estimate", str(path)]) == 2
    assert f"{path}:1: fleet: is a fleet of several workloads; use llmsize plan" in capsys.readouterr().err


def test_options_of_one_workload_are_refused_beside_a_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", FLEET, "--isl", "5", "-g", "h100-sxm"]) == 2
    err = capsys.readouterr().err
    assert "--isl: is of one workload" in err and "--gpu: is of one workload" in err


# --- formats --------------------------------------------------------------------------------------------------------


def test_requests_in_flight_of_a_fleet_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("fleet: [{workload: agentic, gpu: h100-sxm}]\n")
    text = " ".join(out_of(capsys, "plan", str(path), "--no-verify", "--verbose").split())
    assert "inputs workloads agentic demand stated concurrency 64 " in text


def test_a_shared_pool_never_takes_more_than_its_workloads_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One reserve for all saves GPUs: layouts that would only do without a reserve must not win for it."""
    text = "fleet:\n  - {{name: assistant, workload: chat, profile: office, gpu: h100-sxm{0}}}\n  - {{name: search, workload: rag, gpu: h100-sxm{0}}}\nplanning: {{spare: 1, headroom: 20%}}\n"
    gpus = {}
    for pool in ("", ", pool: shared"):
        path = tmp_path / f"fleet{len(pool)}.yaml"
        path.write_text(text.format(pool), encoding="utf-8")
        gpus[pool] = json.loads(out_of(capsys, "plan", str(path), "--no-verify", "--json"))["gpus"]
    assert gpus[", pool: shared"] < gpus[""]
