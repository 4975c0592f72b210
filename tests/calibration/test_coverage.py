"""Ranges of latencies hold about 8 in 10 runs of groups left out, as they say."""

from __future__ import annotations

import numpy as np
import pytest

from sizing.calibration.coverage import covered, tail_of
from sizing.catalog import shelf
from sizing.catalog.runs import ends_of
from sizing.specs.bands import PublishedRuns
from sizing.specs.calibration import Calibration
from sizing.specs.workload import LATENCIES


def runs_of(ratios: list[float]) -> PublishedRuns:
    """A run of each of so many groups, all of whose times are a ratio times the prediction."""
    lines = [f"served NVIDIA vllm hopper dense {at} {of} {of} {of} {of}" for at, of in enumerate(ratios)]
    names = tuple(f"group {at}" for at in range(len(ratios)))
    return PublishedRuns(groups=names, runs="\n".join(lines), least_groups=3, source="a test", date="2026-01-01")


def test_groups_that_agree_cover_each_other_and_the_outermost_two_are_in_no_range_of_the_others() -> None:
    assert covered(runs_of([1.2] * 5), (0.1,)) == {name: [1.0] for name in ("ttft", "itl", "e2e", "throughput")}
    spread = covered(runs_of([0.5, 0.8, 1.0, 1.25, 2.0]), (0.0,))
    assert spread["itl"] == [pytest.approx(3 / 5)]  # all but the least and the greatest


@pytest.mark.parametrize("tail", [0.1, 0.2, 0.3])
def test_a_tail_is_the_share_of_groups_yet_unseen(tail: float) -> None:
    """Of ten groups each lies within the range of the other nine, but for the outermost ones, whose share is twice the tail."""
    assert covered(runs_of(np.geomspace(0.5, 2.0, 10).tolist()), (tail,))["itl"] == [pytest.approx(1 - 2 * tail)]


def test_ends_count_weights_and_are_known_values_at_most() -> None:
    """Of 1, 2 and 3 with weights 1, 2 and 1 one fifth of groups yet unseen is below 1, and half below 2."""
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    found = [ends_of(values, weights, tail) for tail in (0.05, 0.2, 0.5)]
    assert np.ravel(found).tolist() == pytest.approx([1, 3, 1, 3, 2, 2])


def test_the_tail_is_the_one_that_comes_closest_to_the_wanted_share() -> None:
    """Of ratios spread evenly, a range of the others without tails holds all but two."""
    rules = shelf.only(Calibration).bands
    even = runs_of(np.geomspace(0.5, 2.0, 41).tolist())
    assert abs(covered(even, (tail_of(even, rules),))["itl"][0] - rules.covered) <= 1 / 41


def test_the_ranges_of_answers_hold_what_they_say() -> None:
    runs = shelf.only(PublishedRuns)
    found = covered(runs, (runs.tail,))
    assert np.mean([found[name][0] for name in LATENCIES]) == pytest.approx(
        shelf.only(Calibration).bands.covered, abs=0.04
    )
    assert all(0.76 <= share <= 0.86 for (share,) in found.values())
