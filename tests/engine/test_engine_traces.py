"""Traces of many requests: the same run whether rows are shared or copied, and nothing kept of requests that have ended."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from engine_builders import replica_of, served

from sizing.engine import run, scheduler
from sizing.engine.requests import Planned, Requests


def rows(count: int, per_s: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / per_s, count))
    return np.column_stack([arrivals, rng.integers(20, 400, count), rng.integers(1, 30, count)])


def driven(requests: Requests, *, pool_tokens: int | None = None) -> scheduler.Scheduler:
    replica = replica_of(served("llama-3.1-8b", "vllm:0.19.0"), requests, pool_tokens=pool_tokens)
    run.open_loop(requests, [replica])
    return replica


@pytest.mark.parametrize("pool_tokens", [None, 1600])
def test_rows_as_columns_are_the_same_requests(pool_tokens: int | None) -> None:
    """Requests that share the rows of a trace end when those that were added one by one end, preempted or not."""
    sent = rows(600, 120.0)
    shared, added = Requests.of_plan(Planned.of_rows(sent)), Requests()
    for arrival, isl, osl in sent.tolist():
        added.add(arrival, int(isl), int(osl))
    preempted = {driven(requests, pool_tokens=pool_tokens).preempted for requests in (shared, added)}
    assert len(preempted) == 1 and (pool_tokens is None) == (preempted == {0})
    for name in ("arrival", "isl", "osl", "admitted", "first_token", "finished", "generated", "preemptions"):
        assert list(getattr(shared, name)) == list(getattr(added, name)), name
    assert isinstance(shared.isl[0], int) and isinstance(shared.arrival[0], float)


def test_nothing_is_kept_of_requests_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MOST_LEFT", 50)
    replica = driven(Requests.of_plan(Planned.of_rows(rows(2000, 100.0))))
    assert len(replica.order) <= 51 + 2 * replica.watch.batch_max
    assert not replica.held and not replica.prefilling


def test_a_trace_is_held_once_however_many_policies_run_it() -> None:
    """Arrivals and lengths of millions of requests are not copied: where all are kept, runs share their columns."""
    planned = Planned.of_rows(rows(100, 50.0))
    assert planned.only(np.ones(100, dtype=bool)) is planned
    one, other = Requests.of_plan(planned), Requests.of_plan(planned)
    assert one.arrival is other.arrival is planned.arrival and one.isl is other.isl and one.osl is other.osl
    kept = planned.only(np.arange(100) % 2 == 0)
    assert list(kept.arrival) == list(planned.arrival)[::2] and list(kept.osl) == list(planned.osl)[::2]
    assert pickle.loads(pickle.dumps(one)).arrival == planned.arrival
