"""Corrections of step times: a class with a known bias is centred, one without or with too few groups stays as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import yaml

from sizing.calibration.corrections import Seen, TimeRatio, corrections_of, rendered_corrections, rendered_runs
from sizing.catalog.measured import MeasuredRow
from sizing.catalog.runs import table_of
from sizing.specs.bands import Corrections, PublishedRuns, Situation
from sizing.specs.calibration import CorrectionRules

HERE = Situation("served", "NVIDIA", "vllm", "hopper", "moe", "low")
RULES = CorrectionRules(least_groups=3, shrink_groups=0.0, least_gain=0.02, least_standard_errors=2.0, most_loss=0.05)
ROW = cast(MeasuredRow, SimpleNamespace(source="a source"))
SHARES = {"ttft": 0.2, "itl": 0.9, "throughput": 0.8}  # of decode steps in each time


def seen(decode: float, prefill: float, groups: int = 8, noise: float = 0.03) -> list[Seen]:
    """Runs whose decode and prefill steps take so many times what is predicted, but for a group's own error."""
    rng = np.random.default_rng(3)
    found = []
    for group in range(groups):
        own = float(np.exp(rng.normal(0, noise)))
        timings = {
            name: TimeRatio(own * (prefill * (1 - share) + decode * share), share) for name, share in SHARES.items()
        }
        found += [Seen(ROW, HERE, f"group {group}", timings)] * 3  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(("decode", "prefill"), [(1.5, 1.5), (1.3, 0.8), (0.8, 1.4)])
def test_a_known_bias_is_centred(decode: float, prefill: float) -> None:
    found, corrected = corrections_of(seen(decode, prefill), RULES)
    first = found[0]
    assert (first.decode, first.prefill) == pytest.approx((decode, prefill), rel=0.06)
    assert (first.groups, first.architecture, first.source) == (8, "hopper", "a source")
    for name in SHARES:
        ratios = [one.ratio(name) for one in corrected]  # type: ignore[arg-type]
        assert np.median(np.array(ratios, dtype=float)) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("off", ["decode", "prefill"])
def test_one_kind_of_steps_is_corrected_alone_where_the_other_is_off_to_both_sides(off: str) -> None:
    """A factor on all steps would raise the error of the kind that is right on average."""
    names = ("decode", "prefill")
    runs = []
    for place, side in enumerate((0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4)):
        times = {name: 1.5 if name == off else side for name in names}
        runs += [one._replace(group=f"group {place}") for one in seen(**times, groups=1, noise=0.0)]
    found = corrections_of(runs, RULES)[0][0]
    assert [getattr(found, name) == 1.0 for name in names] == [name != off for name in names]
    assert getattr(found, off) == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize(("least", "kept"), [(0.0, True), (2.0, False)])
def test_a_factor_that_helps_five_groups_and_harms_three_may_be_chance(least: float, kept: bool) -> None:
    """Its mean gain of 0.03 is less than one standard error: five groups gain 0.12 each, three lose as much."""
    sides = np.exp([0.12] * 5 + [-0.06] * 3)
    runs = [
        one._replace(group=f"group {place}")
        for place, side in enumerate(sides)
        for one in seen(float(side), float(side), groups=1, noise=0.0)
    ]
    found = corrections_of(runs, RULES.model_copy(update={"least_standard_errors": least}))[0][0]
    assert (found.decode > 1.0) is kept


def test_what_is_centred_or_known_of_too_few_stays() -> None:
    centred, corrected = corrections_of(seen(1.0, 1.0), RULES)
    assert {(one.decode, one.prefill) for one in centred} == {(1.0, 1.0)}
    few, as_seen = corrections_of(seen(1.5, 1.5, groups=2), RULES)
    assert few == []
    assert as_seen == seen(1.5, 1.5, groups=2)
    assert corrected[0].ratio("ttft") == seen(1.0, 1.0)[0].timings["ttft"].ratio


@pytest.mark.parametrize(("groups", "kept"), [(2, True), (3, False)])
def test_a_factor_of_prefill_needs_enough_groups_with_a_ttft(groups: int, kept: bool) -> None:
    """ITL and rates of other groups, which are right, do not make two groups' first tokens evidence of a class."""
    runs = [
        one if int(one.group.split()[1]) < groups else one._replace(timings={"itl": TimeRatio(1.0, 0.9)})
        for one in seen(1.0, 0.7, noise=0.0)
    ]
    found = corrections_of(runs, RULES.model_copy(update={"least_standard_errors": 0.0}))[0][0]
    assert (found.prefill == 1.0) is kept


def test_a_group_has_no_part_in_its_own_correction() -> None:
    runs = seen(1.4, 1.4)
    odd = [one._replace(timings={name: TimeRatio(9.0, 0.5) for name in SHARES}) for one in runs[:3]]  # type: ignore[arg-type]
    _, with_odd = corrections_of([*odd, *runs[3:]], RULES)
    _, without = corrections_of(runs, RULES)
    assert with_odd[0].correction == without[0].correction


def on(architecture: str, runs: list[Seen]) -> list[Seen]:
    """The same runs of groups on another architecture."""
    there = HERE._replace(architecture=architecture)
    return [one._replace(situation=there, group=f"{architecture} {one.group}") for one in runs]


@pytest.mark.parametrize(("elsewhere", "known"), [(1.0, False), (1.5, True)])
def test_a_wide_class_is_corrected_where_it_helps_architectures_left_out(elsewhere: float, known: bool) -> None:
    runs = [*on("hopper", seen(1.5, 1.5)), *on("blackwell", seen(elsewhere, elsewhere, groups=4))]
    found, _ = corrections_of(runs, RULES)
    wide = Corrections.model_validate(yaml.safe_load(rendered_corrections(found))).of(HERE._replace(architecture="ada"))
    assert wide.decode == pytest.approx(1.5 if known else 1.0, rel=0.06)
    alone, _ = corrections_of(on("hopper", seen(1.5, 1.5)), RULES)
    assert [one.decode == 1.0 for one in alone] == [False, True, True]  # one architecture says nothing of others


def test_fewer_groups_are_drawn_to_one() -> None:
    shrunk = RULES.model_copy(update={"shrink_groups": 1.0})
    found = [corrections_of(seen(1.6, 1.6, groups, noise=0.0), shrunk)[0][0].decode for groups in (3, 8, 20)]
    assert 1.0 < found[0] < found[1] < found[2] <= 1.6


def test_the_files_say_what_was_found() -> None:
    found, corrected = corrections_of(seen(1.5, 1.5), RULES)
    read = Corrections.model_validate(yaml.safe_load(rendered_corrections(found)))
    assert read.of(HERE).decode == found[0].decode
    runs = table_of(PublishedRuns.model_validate(yaml.safe_load(rendered_runs(corrected, 3, 0.1))))
    like = runs.like(HERE, ("ttft", "itl", "throughput"))
    assert like is not None and like.groups == 8
    assert like.of("itl") == pytest.approx(1.0, abs=0.2)
    assert runs.like(HERE, ("ttft", "e2e")) is None
    assert runs.like(HERE._replace(engine="sglang"), ("ttft",)) is None
    other = runs.like(HERE._replace(architecture="blackwell", load="high"), ("ttft",))
    assert other is not None and other.groups == 8
