"""Pages on the words of answers and on optimisations, by topic."""

from __future__ import annotations

import re

from sizing.catalog.shelf import Found, Shelf, named
from sizing.specs.facts import Topic
from sizing.specs.units import STATISTICS

TOPICS = Shelf(Topic, "topic", "workloads", "topics", "llmsize explain")
# What rows add to the term that they show: `TTFT p95`, `requests/s of 4 GPUs`, `Cloud aws`.
_ADDED = re.compile(rf"\s(?:{'|'.join(STATISTICS)}|of [\d,]+ GPUs?)$|(?<=^Cloud)\s\w+$", re.IGNORECASE)


def load_topic(text: str) -> Found[Topic]:
    """The page on a topic, a term, or the label of a row or column. Raises InputError if there is none."""
    # A slash in a label means "per", not a file.
    return named(TOPICS, _ADDED.sub("", text.strip()).replace("/", " per "))
