"""The document of `llmsize explain`."""

from __future__ import annotations

from typing import NamedTuple

from sizing import __version__


class TopicReport(NamedTuple):
    """One topic as its file states it."""

    topic: str
    name: str
    does: str
    formulas: tuple[str, ...]
    modelled: str
    helps: str
    does_not_help: str
    quality: str
    options: tuple[str, ...]
    sources: tuple[str, ...]
    date: str
    schema: str = "llmsize.topic/1"
    version: str = __version__
