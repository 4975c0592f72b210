"""The report of a calibration: each factor is told in one place."""

from __future__ import annotations

import pytest

from sizing.report.calibrate import FittedFactor, _held


@pytest.mark.parametrize(
    ("told", "far", "labels"),
    [(True, False, []), (True, True, ["Mind"]), (False, False, ["Uncertain"]), (False, True, ["Mind"])],
)
def test_a_factor_is_far_or_uncertain_and_never_both(told: bool, far: bool, labels: list[str]) -> None:
    factor = FittedFactor("bandwidth", 1.6, 0.9, 2.3, "x base", told=told, far=far)
    assert [line.label for line in _held([factor], 1)] == labels
