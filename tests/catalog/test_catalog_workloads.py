"""Workloads: the ready ones, a user's own, and what the command line changes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from sizing.catalog.models import load_model
from sizing.catalog.shelf import only
from sizing.catalog.workloads import SHELF, load_workload, override
from sizing.question.question import demand_of
from sizing.specs.errors import InputError
from sizing.specs.workload import Defaults, Workload

OPTIONS = {
    "model": "--model",
    "tokens.isl": "--isl",
    "tokens.osl": "--osl",
    "tokens.isl_max": "--isl-max",
    "demand.requests_per_s": "--rate",
    "demand.concurrency": "--concurrency",
    "limits.ttft": "--ttft",
    "mode": "--mode",
}
ASKED_OF_GPUS = (
    "cnn-dailymail",
    "mixtral-mix",
    "openorca",
)  # benchmarks without a demand: what so many GPUs serve is what is asked
READY = tuple(
    sorted(
        (
            *ASKED_OF_GPUS,
            "agentic",
            "call-centre",
            "chat",
            "code-completion",
            "offline-batch",
            "rag",
            "summarisation",
        )
    )
)


def test_the_ready_workloads_are_these() -> None:
    assert SHELF.ids == READY


@pytest.mark.parametrize("name", READY)
def test_a_ready_workload_is_complete_and_sourced(name: str) -> None:
    found = load_workload(name)
    spec = found.spec
    assert (found.id, spec.name) == (name, name)
    assert (spec.demand is None) == (name in ASKED_OF_GPUS)
    assert spec.source
    assert spec.description
    assert (spec.limits == type(spec.limits)()) == (spec.mode == "offline")


@pytest.mark.parametrize("name", READY)
def test_a_ready_workload_fits_the_context_of_its_model(name: str) -> None:
    spec = load_workload(name).spec
    assert spec.tokens.longest <= load_model(spec.model).spec.max_position


def test_the_call_centre_demand_is_the_published_one() -> None:
    # 30e6 calls/year * 10 min * 1 question/min * 3 requests = 9e8 in 31,536,000 s: 28.539/s, 7x 199.77.
    found = demand_of(load_workload("call-centre").spec)
    assert found is not None
    assert found.peak_per_s == pytest.approx(7 * 30e6 * 10 * 3 / 31_536_000)


def test_the_defaults_give_the_published_daily_users() -> None:
    # 70.747 requests/s * 28,800 s / 3 = 679,171 users a day, of a day that is flat; unless that is said, its peak is 2.
    rules = only(Defaults)
    users = 70.747 * rules.active_hours * 3600 / rules.requests_per_user_per_day
    assert rules.peak_to_mean == 2.0
    assert users == pytest.approx(679_171, abs=0.5)
    assert rules.max_utilisation / (2 * (1 - rules.max_utilisation)) == pytest.approx(2.0)  # M/D/1 wait, service times


def test_a_name_with_a_suffix_is_a_file_and_no_ready_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"chat\.yaml: there is no such file; allowed: chat for the ready workload"):
        load_workload("chat.yaml")
    Path("chat.yaml").write_text("model: mine\ntokens: {isl: 1, osl: 1}\n")
    assert load_workload("chat.yaml").spec.model == "mine"
    assert load_workload("chat").spec.model != "mine"


def test_unknown_workloads_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"unknown workload 'chatt'.*did you mean chat"):
        load_workload("chatt")
    with pytest.raises(InputError, match=r"chatt\.yaml: not found"):
        load_workload("chatt.yaml")
    with pytest.raises(InputError, match="unknown workload 'c'"):
        load_workload("c")


def test_overrides_change_what_they_name_and_leave_the_rest() -> None:
    chat = load_workload("rag").spec
    changed = override(chat, {"tokens.osl": 300, "limits.ttft": "p95:2s", "mode": None}, OPTIONS)
    assert changed.tokens.osl == 300
    assert changed.tokens.isl == chat.tokens.isl
    assert changed.limits.ttft is not None
    assert (changed.limits.ttft.statistic, changed.limits.ttft.seconds) == ("p95", 2.0)
    assert changed.limits.itl == chat.limits.itl
    assert changed.mode == chat.mode
    assert override(chat, {}, OPTIONS) == chat


def test_a_new_demand_replaces_the_old_one_wholly() -> None:
    chat = load_workload("chat").spec
    assert chat.demand is not None
    assert chat.demand.daily_active_users is not None
    changed = override(chat, {"demand": {"requests_per_s": 7.0}}, OPTIONS)
    assert changed.demand is not None
    assert changed.demand.model_dump(exclude_none=True) == {"requests_per_s": 7.0}


def test_overrides_do_not_change_what_they_are_given() -> None:
    demand = {"requests_per_s": 7.0}
    chat = load_workload("chat").spec
    before = copy.deepcopy(chat)
    override(chat, {"demand": demand, "demand.requests_per_s": 8.0}, OPTIONS)
    assert demand == {"requests_per_s": 7.0}
    assert chat == before


def test_a_workload_can_be_made_of_options_alone() -> None:
    made = override(None, {"model": "m", "tokens.isl": 5, "tokens.osl": 2}, OPTIONS)
    assert made == Workload.model_validate({"model": "m", "tokens": {"isl": 5, "osl": 2}})


def test_faults_of_options_name_the_options_all_in_one_run() -> None:
    given = {"tokens.isl": -1, "limits.ttft": "500", "mode": "streamin", "demand": {"requests_per_s": 0.0}}
    with pytest.raises(InputError) as caught:
        override(None, given, OPTIONS)
    assert {fault.field: fault.message for fault in caught.value.faults} == {
        "--model": "is required",
        "--osl": "is required",
        "--isl": "must be a whole number above 0 and at most 1,000,000,000,000, not '-1'",
        "--ttft": "'500' is not a duration with a unit, as 500ms, 1.5s or 2min; of a percentile p95:1s",
        "--mode": "is not known: 'streamin'",
        "--rate": "must be a number of at least 1e-06 and at most 1,000,000,000, not '0.0'",
    }
    assert all(fault.file is None and fault.line is None for fault in caught.value.faults)


def test_a_fault_of_several_options_names_those_given() -> None:
    with pytest.raises(InputError) as caught:
        override(load_workload("chat").spec, {"tokens.isl": 9000}, OPTIONS)
    (fault,) = caught.value.faults
    assert (fault.field, fault.message) == (
        "--isl",
        "isl_max (4142) is below the mean isl (9000): a maximum is at least the mean",
    )
    both = {"demand": {"requests_per_s": 1.0, "concurrency": 2}}
    with pytest.raises(InputError) as caught:
        override(load_workload("chat").spec, both, {**OPTIONS, "demand": "--rate, --concurrency"})
    assert caught.value.faults[0].field == "--rate, --concurrency"
