"""What a replica is: facts that travel between processes and remember nothing that they were asked."""

from __future__ import annotations

import pickle
from functools import cache

import pytest
from builders import ask, option, real_model

from sizing.engine.deployment import deployment_of
from sizing.engine.requests import Lengths
from sizing.engine.simulation import Traffic, simulate
from sizing.model.architecture import Layout
from sizing.replica.capacity import most_of
from sizing.replica.replica import Refusal, Replica, of
from sizing.replica.step import Batch, every_operation, step
from sizing.replica.timing import Timed, timed

MOST_MEMBERS = 12


@cache
def laid(model: str, tp: int) -> Replica:
    found = of(ask(real_model(model)).service, option("h100-sxm"), Layout(tp=tp), None)
    assert isinstance(found, Replica)
    return found


@cache
def tabulated(model: str, tp: int) -> Timed:
    return timed(laid(model, tp))


def test_a_replica_has_few_members() -> None:
    members = [name for name in dir(Replica) if not name.startswith("_")]
    assert len(members) <= MOST_MEMBERS, members


@pytest.mark.parametrize(("model", "tp"), [("llama-3.1-8b", 1), ("gpt-oss-120b", 2)])
def test_a_replica_and_what_is_timed_travel_between_processes(model: str, tp: int) -> None:
    replica, whole = laid(model, tp), tabulated(model, tp)
    assert pickle.loads(pickle.dumps(replica)) == replica
    copy, target = pickle.loads(pickle.dumps(whole)), ask(real_model(model)).target
    assert most_of([copy], target) == most_of([whole], target)
    batch = Batch(decode_sequences=8.0, decode_context_tokens=500.0)
    assert step(copy.kernels, batch).total_s == step(whole.kernels, batch).total_s


def test_a_refusal_is_a_value_with_what_is_lacking() -> None:
    found = of(ask(real_model("llama-3.1-70b")).service, option("h100-sxm"), Layout(), None)
    assert isinstance(found, Refusal)
    assert (found.reason, found.sized is not None) == ("memory", True)
    assert pickle.loads(pickle.dumps(found)) == found


def test_constants_do_not_depend_on_what_was_timed_before() -> None:
    """A simulation in between changes neither which rows time an operation nor their order."""
    whole = tabulated("llama-3.1-8b", 1)
    asked = every_operation(whole.kernels.shard)
    before = whole.kernels.choices(asked)
    simulate(deployment_of(whole), Traffic(Lengths(500), Lengths(50), 20, rate_per_s=2.0))
    assert list(whole.kernels.choices(asked).items()) == list(before.items())
    assert list(timed(laid("llama-3.1-8b", 1)).kernels.choices(asked).items()) == list(before.items())
