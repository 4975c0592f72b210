"""A page on one optimisation, as `llmsize explain` shows it."""

from __future__ import annotations

from sizing.specs.base import Spec, Text


class Topic(Spec):
    """One file of workloads/topics: what it does, how it is computed here, where it helps and where not, sources.

    `formulas` are lines of their own; `options` say how to ask for it; `quality` what is known of changed outputs and which
    evaluation tells.
    """

    name: Text
    aliases: tuple[Text, ...] = ()
    does: Text
    formulas: tuple[Text, ...]
    modelled: Text
    helps: Text
    does_not_help: Text
    quality: Text
    options: tuple[Text, ...]
    sources: tuple[Text, ...]
    date: Text
