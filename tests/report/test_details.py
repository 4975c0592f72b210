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
