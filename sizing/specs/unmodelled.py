"""Things that people ask for but no profile models: other hardware, engines and weight formats."""

from __future__ import annotations

import re

from sizing.specs.values import OneFile, Sourced, Spec, Text


class Unmodelled(Spec):
    """One thing that is not modelled: how its names begin, what it is, and the nearest thing that is modelled."""

    begins: tuple[Text, ...]
    what: Text
    nearest: Text | None = None


class NotModelled(OneFile, Sourced):
    """The file hardware_profiles/_not_modelled.yaml. `modelled` says what is modelled."""

    FILE = "hardware_profiles/_not_modelled.yaml"

    modelled: Text
    entries: tuple[Unmodelled, ...]

    def of(self, name: str) -> Unmodelled | None:
        """The entry that matches a word of `name`, or None."""
        words = [word for word in re.split(r"[^a-z0-9.]+", name.lower()) if word]
        words.append(name.lower().rpartition(".")[2])  # the ending of a file
        found = (
            (len(begin), entry)
            for entry in self.entries
            for begin in entry.begins
            if any(word == begin or re.fullmatch(rf"{re.escape(begin)}[\d.]*[a-z]?", word) for word in words)
            or "".join(words).startswith(begin.replace("-", ""))
        )
        return max(found, key=lambda pair: pair[0], default=(0, None))[1]
