"""Several replicas behind a router."""

from __future__ import annotations

import numpy as np
import pytest
from engine_builders import poisson, replica_of, served, store

from sizing.engine import run
from sizing.engine.requests import Lengths
from sizing.model.extras.prefixes import Conversation


@pytest.mark.parametrize("routing", run.ROUTINGS)
def test_a_router_sends_every_request_to_one_replica(routing: run.Routing) -> None:
    of = served("llama-3.1-8b", "vllm:0.19.0")
    requests = store(poisson(300, 30.0, 2), [300] * 300, [60] * 300)
    replicas = [replica_of(of, requests) for _ in range(3)]
    run.open_loop(requests, replicas, routing=routing)
    assert requests.generated == requests.osl
    assert sum(replica.watch.queue_max > 0 for replica in replicas) == 3


def test_the_least_loaded_replica_serves_faster_than_taking_turns() -> None:
    of = served("llama-3.1-8b", "vllm:0.19.0")
    osl = [1, 600] * 150  # in turn, one replica of two would get all the long ones
    means = {}
    for routing in ("round-robin", "least-requests"):
        requests = store(poisson(300, 20.0, 2), [300] * 300, osl)
        run.open_loop(requests, [replica_of(of, requests) for _ in range(2)], routing=routing)  # type: ignore[arg-type]
        means[routing] = np.mean(np.array(requests.finished) - np.array(requests.arrival))
    assert means["least-requests"] < means["round-robin"]


def test_lengths_do_not_follow_the_replica_that_a_router_draws() -> None:
    """A router of the same seed draws whole numbers too. Of 8 turns over 6 replicas each has the mean of all."""
    for lengths in (
        Lengths(3300, shape="turns", among=Conversation(turns=8, first=500, shared=0, osl=300).prompts),
        Lengths(4000, shape="uniform", low_share=0.1),
    ):
        drawn = lengths.draw(6000, np.random.default_rng(0))
        router = np.random.default_rng(0)
        replica = np.array([router.integers(6) for _ in range(6000)])
        for each in range(6):
            assert drawn[replica == each].mean() == pytest.approx(drawn.mean(), rel=0.06)
