"""Pages on optimisations, by topic."""

from __future__ import annotations

from sizing.catalog.shelf import Shelf
from sizing.specs.facts import Topic

TOPICS = Shelf(Topic, "topic", "workloads", "topics", "llmsize explain")
