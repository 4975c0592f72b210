"""What is read into a spec, and everything that is wrong with data at once."""

from __future__ import annotations

import pickle
from http import HTTPStatus

import numpy as np
import pytest

from sizing.specs.spec import SpecError, Wrong
from sizing.specs.workload import Limits, Planning, Tokens, Workload

DATA = {"model": "m", "tokens": {"isl": 5, "osl": 2}, "planning": {"headroom": "500%"}}


def test_a_spec_is_read_written_and_read_again() -> None:
    workload = Workload.model_validate(DATA)
    assert workload.planning == Planning(headroom=5.0) and workload.limits == Limits()
    assert workload.model_dump(exclude_unset=True) == DATA
    assert Workload.model_validate(workload.model_dump()) == workload == pickle.loads(pickle.dumps(workload))
    assert Workload.model_validate(workload) is workload


def test_all_findings_come_at_once_each_at_its_path() -> None:
    wrong = {"tokens": {"isl": "x", "osl": True, "oslx": 1}, "gpu": ["a", 5], "uncertain": {"demand": {"low": 1}}}
    with pytest.raises(SpecError) as caught:
        Workload.model_validate(wrong)
    assert {(each.path, each.kind) for each in caught.value.findings} == {
        (("model",), "missing"),
        (("gpu", 1), "type"),
        (("tokens", "isl"), "type"),
        (("tokens", "osl"), "type"),
        (("tokens", "oslx"), "unknown"),
        (("uncertain", "demand", "high"), "missing"),
    }


def test_numbers_are_no_switches_and_a_whole_number_is_a_number() -> None:
    tokens = Tokens.model_validate({"isl": 5, "osl": 2, "isl_max": 9, "isl_std": 1})
    assert type(tokens.isl_std) is float
    for value in (True, "1", 1.5, float("inf"), 10**400):
        assert type(Tokens.read({"isl": value, "osl": 2})) is Wrong
    assert type(Planning.read({"active_hours": 10**400})) is Wrong


def test_numbers_and_texts_of_other_classes_are_taken_as_plain_ones() -> None:
    """A program has them from numpy, data frames and enumerations."""
    tokens = Tokens.model_validate({"isl": np.int64(5), "osl": HTTPStatus.OK, "isl_max": 9, "isl_std": np.float32(2)})
    assert tokens == Tokens.model_validate({"isl": 5, "osl": 200, "isl_max": 9, "isl_std": 2.0})
    assert [type(each) for each in (tokens.isl, tokens.osl, tokens.isl_std)] == [int, int, float]
    workload = Workload.model_validate({**DATA, "model": np.str_("m")})
    assert type(workload.model) is str and workload.model == "m"
    for value in (np.bool_(True), np.array([5]), np.float64("nan")):
        assert type(Tokens.read({"isl": value, "osl": 2})) is Wrong


def test_a_copy_states_what_it_was_given() -> None:
    tokens = Tokens.model_validate({"isl": 5, "osl": 2})
    assert tokens.model_copy({"isl_max": 9}).model_fields_set == {"isl", "osl", "isl_max"}
    assert tokens.growing((5, 7)) != tokens.growing((6, 6)).model_copy({"isl_max": 7})
    with pytest.raises(TypeError, match="Tokens takes isl, osl"):
        Tokens(isl=5, oslx=2)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="cannot assign"):
        tokens.isl = 6  # type: ignore[misc]
