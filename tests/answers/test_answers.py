"""Answers are data: they can be pickled, and are the same after it."""

from __future__ import annotations

import pickle

import pytest
from builders import ask, option, real_model

from sizing.answers import pools
from sizing.answers.answer import Answer, Outcome
from sizing.answers.search import search
from sizing.answers.verify import verify
from sizing.catalog import shelf
from sizing.question.question import PoolSpace, SeparatePools
from sizing.specs.optimisations import HandOver, PoolLayout

REQUEST = ask(real_model("llama-3.1-8b"), isl=500, osl=50, demand={"requests_per_s": 60.0}, limits={"itl": "30ms"})


def outcomes() -> list[Outcome]:
    h100 = (option("h100-sxm"),)
    side = PoolSpace(h100, PoolLayout(tp=1))
    asked = SeparatePools(side, side, shelf.only(HandOver))
    whole, pairs = (
        search(REQUEST.with_(gpu_types=h100, precisions=(None,))),
        pools.search(REQUEST.with_(pools=asked)),
    )
    return [whole, verify(whole), pairs, verify(pairs)]


@pytest.mark.parametrize("number", range(4))
def test_an_outcome_is_data(number: int) -> None:
    outcome = outcomes()[number]
    again: Outcome = pickle.loads(pickle.dumps(outcome))
    assert again.best is not None and outcome.best is not None
    assert (again.verified, again.simulation.tries) == (outcome.verified, outcome.simulation.tries)
    assert [figures(answer) for answer in again.answers] == [figures(answer) for answer in outcome.answers]


def figures(answer: Answer) -> tuple[object, ...]:
    counts = [(pool.phase, pool.count, pool.replica.layout, pool.capacity) for pool in answer.pools]
    return (answer.gpus, answer.requests_per_s, answer.usd_per_hour, answer.latency_s("e2e"), *counts)
