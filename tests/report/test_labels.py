"""Labels beside the points of a picture: each at its own point, over no other label and no point, inside the axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from sizing.formats.pictures import CHARACTER_CELLS, COLUMNS, LABEL_CELLS, ROWS, _labels, style
from sizing.formats.view import Mark, Series

Box = tuple[float, float, float, float]  # left, bottom, right, top in cells


def labelled(marks: tuple[Mark, ...], *others: Mark) -> Iterator[tuple[Mark, Box]]:
    """Yield the marks that got their label, with its box. Axes go from 0 to 100; `others` are points without a label."""
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    axis.set(xlim=(0, 100), ylim=(0, 100))
    series = [(Series("labelled", marks), style(0)), *([(Series("others", others), style(1))] if others else [])]
    by_text = {mark.label: mark for mark in marks}
    for text, (across, up), _ in _labels(axis, series, None):
        left, middle = across * COLUMNS, up * ROWS
        right = left + 1 + CHARACTER_CELLS * len(text)
        yield by_text[text], (left, middle - LABEL_CELLS / 2, right, middle + LABEL_CELLS / 2)


def cell(mark: Mark) -> tuple[float, float]:
    return mark.x / 100 * COLUMNS, mark.y / 100 * ROWS


def drawn(seed: int) -> tuple[Mark, ...]:
    """Points of a random walk, as dense as a curve of many loads, with labels of one to three characters."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(2, 25))
    xs = np.sort(draw.uniform(1, 99, count))
    ys = np.clip(draw.uniform(0, 100) + np.cumsum(draw.normal(0, 9, count)), 1, 99)
    return tuple(
        Mark(float(x), float(y), f"{10 ** draw.integers(0, 3) + number}", chosen=number == count // 2)
        for number, (x, y) in enumerate(zip(xs, ys, strict=True))
    )


@pytest.mark.parametrize("seed", range(25))
def test_a_label_is_nearest_to_its_own_point_over_nothing_and_inside(seed: int) -> None:
    marks = drawn(seed)
    marks = tuple({mark.label: mark for mark in marks}.values())
    found = list(labelled(marks))
    assert found and len({mark.label for mark, _ in found}) == len(found)
    for mark, (left, bottom, right, top) in found:
        middle = (left + right) / 2, (bottom + top) / 2
        assert math.dist(cell(mark), middle) <= min(math.dist(cell(other), middle) for other in marks) + 1e-9
        assert left > 0 and right < COLUMNS and bottom > 0 and top < ROWS
        assert not [other for other in marks if left < cell(other)[0] < right and bottom < cell(other)[1] < top]
    for (_, one), (_, other) in combinations(found, 2):  # to a cell, as cells are whole
        apart = max(one[0] - other[2], other[0] - one[2], one[1] - other[3], other[1] - one[3])
        assert apart > -1


def test_a_point_with_room_has_its_label_and_the_chosen_one_comes_first() -> None:
    assert [mark.label for mark, _ in labelled((Mark(50.0, 50.0, "64"),), Mark(10.0, 10.0))] == ["64"]
    near = (Mark(50.0, 50.0, "1"), Mark(50.4, 50.0, "2"), Mark(50.8, 50.0, "3", chosen=True))
    first, *_ = labelled(near)
    assert first[0].label == "3"


def test_a_point_that_others_surround_has_none() -> None:
    around = [Mark(50 + 3 * math.cos(turn), 50 + 5 * math.sin(turn)) for turn in np.linspace(0, 6.2, 60)]
    assert not list(labelled((Mark(50.0, 50.0, "64"),), *around))
