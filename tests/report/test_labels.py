"""Labels beside the points of a picture."""

from __future__ import annotations

import math

from sizing.formats.pictures import _labels, style
from sizing.formats.view import Mark, Series


def test_a_label_is_nearest_to_its_own_point() -> None:
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    axis.set(xlim=(0, 100), ylim=(0, 100))
    marks = tuple(Mark(20.0 + n, 20.0 + 3.0 * n, str(n)) for n in range(1, 20))
    places = list(_labels(axis, [(Series("a line", marks), style(0))], None))
    assert places
    for text, (across, up), _ in places:
        middle = 100 * across + (1 + 2 * len(text)) / 5, 100 * up  # a character is 2 of 250 cells wide
        nearest = min(
            marks, key=lambda mark: math.dist((2.5 * mark.x, 1.5 * mark.y), (2.5 * middle[0], 1.5 * middle[1]))
        )
        assert nearest.label == text
