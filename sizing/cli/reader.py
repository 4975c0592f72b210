"""Reads option values and checks their ranges. It collects faults, so that a command reports all mistakes together."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar

from sizing.catalog.files import exists, expanded, is_folder, out_of_reach, resolved
from sizing.specs.errors import Fault, nearest, raise_any

T = TypeVar("T")
Word = TypeVar("Word", bound=str)
MOST = 10_000_000  # the largest count: more requests would not fit memory
MOST_CONTEXT = 1_000_000_000  # tokens
SEEDS = 2**32  # the number of seeds that random generators accept
# Largest standard deviation as a multiple of the mean. Above it, most lengths are one token and a few are extremely long.
# The model's maximum length cuts these, so that the mean differs from the stated one.
MOST_SPREAD = 10.0
PICTURES = (".svg", ".png", ".pdf")


class Reader:
    """Reads values of options and collects a fault for each one out of range. A `with` block raises them at its end."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        """Read; `faults` are known already."""
        self.faults = list(faults)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.check()

    def fault(self, message: str, field: str, allowed: str | None = None, **named: str | None) -> None:
        """Record a fault."""
        self.faults.append(Fault(message, None, None, field, allowed, **named))

    def check(self) -> None:
        """Raise InputError with the recorded faults, if any."""
        raise_any(self.faults)

    def spread(self, option: str, std: float | None, mean: float) -> None:
        """Record a fault for a standard deviation far above its mean."""
        if std is not None and std > MOST_SPREAD * mean:
            allowed = f"at most {MOST_SPREAD:g} times the mean, {MOST_SPREAD * mean:g}"
            self.fault(f"{std:g} is too wide for lengths of {mean:g} tokens on average", option, allowed)

    def number(
        self, value: float | None, option: str, *, least: float | None = None, most: float | None = None
    ) -> float | None:
        """A finite number within a range (above 0 without `least`); None if absent or invalid."""
        if value is None:
            return None
        low = value > 0 if least is None else value >= least
        if math.isfinite(value) and low and (most is None or value <= most):
            return float(value)
        allowed = "above 0" if least is None else f"at least {least:g}"
        allowed = allowed if most is None else f"{allowed}, at most {most:,.10g}"
        self.fault(f"{value:,.10g} is out of range", option, allowed)
        return None

    def whole(self, value: int | None, option: str, *, least: int = 1, most: int = MOST) -> int | None:
        """A whole number within a range; None if absent or invalid."""
        if value is None or least <= value <= most:
            return value
        self.fault(f"{value:,} is out of range", option, f"{least:,} to {most:,}")
        return None

    def seed(self, value: int | None, default: int) -> int:
        """The seed."""
        found = self.whole(value, "--seed", least=0, most=SEEDS - 1)
        return default if found is None else found

    def chosen(self, text: str, words: Sequence[Word], option: str, noun: str) -> Word | None:
        """One of the `words` words, in upper or lower case; None for any other word."""
        found = next((word for word in words if word == text.strip().lower()), None)
        if found is not None:
            return found
        self.fault(f"{text!r} is no {noun}", option, ", ".join(words), nearest=nearest(text, words))
        return None

    def policies(self, text: str | None, known: Sequence[str], default: str) -> tuple[str, ...]:
        """The batching policies of a comma-separated list, each once."""
        names = [part.strip() for part in (default if text is None else text).split(",")]
        found = (self.chosen(name, known, "--policy", "batching policy") for name in names)
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def parsed(self, text: str | None, option: str, parse: Callable[[str], T], allowed: str | None = None) -> T | None:
        """The result of `parse`; None if the text is absent or `parse` raises ValueError. The fault then states `allowed`."""
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            self.fault(str(error), option, allowed)
            return None

    def target(self, text: str | None, option: str, suffixes: Sequence[str] = ()) -> Path | None:
        """The path of a file to write, in an existing folder and with one of the suffixes; None if invalid."""
        if text is None:
            return None
        path = expanded(text)
        if not text.strip():
            self.fault("names no file", option, "a file to write")
        elif is_folder(path):
            self.fault(f"{text!r} is a folder", option, "a file to write")
        elif not is_folder(path.parent):
            self.fault(f"there is no folder {str(path.parent)!r}", option)
        elif (reason := out_of_reach(path)) is not None:
            self.fault(f"{text!r} cannot be written: {reason}", option)
        elif suffixes and path.suffix.lower() not in suffixes:
            self.fault(f"{text!r} has no known ending", option, ", ".join(suffixes))
        else:
            return path
        return None

    def picture(self, plot: str | None, *, long: bool = False) -> Path | None:
        """The path of the picture to draw; None without one.

        If the work takes `long`, a missing matplotlib is a fault at once. Other commands print their numbers first.
        """
        from sizing.formats.pictures import NO_MATPLOTLIB

        path = self.target(plot, "--plot", PICTURES)
        if path is not None and long and importlib.util.find_spec("matplotlib") is None:
            self.faults.append(NO_MATPLOTLIB)
        return path

    def distinct(self, written: Mapping[str, Path | None], read: Mapping[str, str | None]) -> None:
        """Record a fault for each file to write, by option, that is also another output or an input file."""
        seen = {name: expanded(text) for name, text in read.items() if text}
        for option, path in written.items():
            same = (
                None if path is None else next((name for name, other in seen.items() if same_file(path, other)), None)
            )
            if same is not None:
                self.fault(f"{str(path)!r} is the file of {same} too", option, "a file of its own")
            seen |= {} if path is None else {option: path}


def above_0(value: float | None, option: str) -> float | None:
    """A number above 0, or None. Raises InputError for another."""
    with Reader() as read:
        return read.number(value, option)


def picture_of(plot: str | None) -> Path | None:
    """The picture to draw, alone among the files of a command. Raises InputError if it can't be written."""
    with Reader() as read:
        return read.picture(plot)


class OutputFiles(NamedTuple):
    """The files to write besides the result, None for one that is not requested."""

    plot: Path | None
    rows: Path | None


def output_files(plot: str | None, rows: str | None, option: str, inputs: Mapping[str, str | None]) -> OutputFiles:
    """The files of --plot and of the `option` for rows. Raises InputError if one can't be written or is another or an input."""
    with Reader() as read:
        found = OutputFiles(read.picture(plot, long=True), read.target(rows, option))
        read.distinct({"--plot": found.plot, option: found.rows}, inputs)
    return found


def written_apart(
    out: str | None, files: Sequence[str], suffixes: Sequence[str] = (), option: str = "--out"
) -> Path | None:
    """The file of an option, or None. Raises InputError if it can't be written or is one of the input `files`."""
    with Reader() as read:
        found = read.target(out, option, suffixes)
        read.distinct({option: found}, arguments(files))
    return found


def arguments(files: Sequence[str]) -> dict[str, str]:
    """The input files, by their names in faults."""
    return {f"the argument {file!r}": file for file in files}


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths are the same file: by resolved path or, for existing files, by any link."""
    if resolved(one) == resolved(other):
        return True
    return exists(one) and exists(other) and one.samefile(other)
