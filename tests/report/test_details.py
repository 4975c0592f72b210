"""What --verbose adds: names of this program as people write them, sentences and names of others as they are."""

from __future__ import annotations

from typing import NamedTuple

from sizing.formats.details import details
from sizing.formats.text import blocks_of, rows


class Found(NamedTuple):
    reason: str
    binding: str


def test_a_sentence_keeps_its_points_and_a_name_loses_its_underscores() -> None:
    blocks = [
        block
        for section in details(Found("needs 1.7 GiB more, see kv_cache", "max_num_seqs"))
        for block in blocks_of(section)
    ]
    text = " ".join("".join(piece for piece, _ in row) for row in rows(blocks, 200))
    assert "needs 1.7 GiB more, see kv_cache" in text
    assert "max num seqs" in text


class Point(NamedTuple):
    concurrency: int
    running_requests: int
    waiting_requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    steps_of_decode: int
    steps_of_prefill: int


class Alike(NamedTuple):
    name: str
    gpus: int
    rate: float


class Way(NamedTuple):
    name: str
    gpus: int
    usd_per_month: float
    requests_per_s: float
    needs: str


class Ways(NamedTuple):
    ways: tuple[Way | Point | Alike, ...]


def shown(record: NamedTuple) -> list[str]:
    """The lines of everything in a record, in 80 columns."""
    blocks = [block for section in details(record) for block in blocks_of(section)]
    return ["".join(piece for piece, _ in row).rstrip() for row in rows(blocks, 80)]


def test_records_with_long_texts_are_paragraphs_and_wide_tables_are_several() -> None:
    needs = "an engine that reads an FP8 cache, and " * 3 + "scales"
    told = shown(Ways((Way("fp8-cache", 8, 35_900.0, 2.8, needs), Way("sparsity", 6, 26_900.0, 3.7, "pruned weights"))))
    assert "fp8-cache  GPUs 8, $35,900 per month, requests/s 2.800" in told
    assert any(line.startswith("          needs: an engine") for line in told)
    points = tuple(Point(*(at * 10**6 + place for place in range(len(Point._fields)))) for at in (1, 2))
    told = shown(Ways(points))
    assert max(map(len, told)) <= 80
    assert sum(line.startswith("  1,000,000  ") for line in told) == 2  # the first column stands in each table


def test_records_that_are_alike_but_for_their_names_show_their_figures() -> None:
    assert any(line.split() == ["one", "3", "5"] for line in shown(Ways((Alike("one", 3, 5.0), Alike("two", 3, 5.0)))))


class LimitRow(NamedTuple):
    name: str
    passed: bool
    gpus_at_least: bool
    gpus: int


class AllJudged(NamedTuple):
    passed: bool
    each: tuple[LimitRow, ...]
    changes: tuple[Point, ...] | None = None


def test_a_verdict_is_said_in_words() -> None:
    first, second, *_ = shown(AllJudged(False, (LimitRow("a", False, False, 4),)))
    assert (first.split(), second.split(maxsplit=1)) == (["verdict", "fails"], ["each", "name a, fails, GPUs 4"])
    assert "passes, at least so many GPUs, GPUs 4" in shown(AllJudged(True, (LimitRow("a", True, True, 4),)))[1]
