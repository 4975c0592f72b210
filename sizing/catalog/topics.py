"""Pages on optimisations, by name."""

from __future__ import annotations

from sizing.catalog.files import read_yaml, validate
from sizing.catalog.names import Found, Shelf, find, ids, matched_from
from sizing.specs.topic import Topic

SHELF = Shelf("topic", "workloads", "topics", "llmsize explain")


def topic_names() -> tuple[str, ...]:
    """Return the names of all topics, sorted."""
    return ids(SHELF)


def load_topic(name: str) -> Found[Topic]:
    """Return a topic by name or alias. Raises InputError for an unknown one."""
    entry = find(name, SHELF)
    return Found(validate(Topic, read_yaml(entry.path)), entry.id, entry.path, matched_from(name, entry))
