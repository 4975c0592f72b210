"""The rules of a scheduler by hand: when prompts that are held may go."""

from __future__ import annotations

from sizing.engine.rules import SchedulerRules


def test_balanced_ranks_hold_prompts_until_each_has_one() -> None:
    rules = SchedulerRules(slots=8, hold_steps=50, hold_balanced=True).over(4)
    assert not rules.fill_hold(3, 3000.0, 4)
    assert rules.fill_hold(4, 4000.0, 4)
    assert rules.fill_hold(1, 1000.0, 3)  # a rank that does not decode waits for nobody


def test_prompts_are_held_until_they_fill_their_share_of_the_budget() -> None:
    rules = SchedulerRules(slots=8, budget=1000.0, hold_steps=20, hold_ratio=0.9)
    assert not rules.fill_hold(2, 880.0, 19)
    assert rules.fill_hold(2, 880.0, 20)


def test_balanced_prompts_wait_for_others_once_each_rank_has_one() -> None:
    rules = SchedulerRules(slots=8, hold_steps=50, ready_steps=10, hold_balanced=True).over(4)
    assert not rules.fill_hold(4, 4000.0, 4, ready=9)
    assert rules.fill_hold(4, 4000.0, 4, ready=10)
    assert rules.ready_wait(4, 3) == 7


def test_a_limit_of_each_microbatch_counts_once_for_every_stage_of_a_pipeline() -> None:
    assert SchedulerRules(slots=8).over(2, 4).slots == 16
    assert SchedulerRules(slots=8, slots_of_microbatch=True).over(2, 4).slots == 64
