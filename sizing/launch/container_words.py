"""The words of a container's command in a manifest: as they stand, or as a chart, a controller or Ray Serve writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sizing.launch.expansion import VARIABLE
from sizing.launch.flags import Word
from sizing.launch.nodes import ManifestNode, as_list, as_mapping, line_of, value_at
from sizing.launch.script_text import words as shell_words
from sizing.specs.errors import Fault, unknown
from sizing.specs.launch import Charts, LaunchFacts

COMMANDS = ("entrypoint", "command", "args")
_OF_SHELL = re.compile(r"(?<!\$)\$\{?([A-Za-z_]\w*)\}?")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def words_of(node: ManifestNode, charts: Charts) -> Iterator[Word]:
    """Yield the words of a container's command: the items of lists, and text split as in a shell; and those of flags by keys."""
    yield from map(_unescaped, _stated(node)) if node.of_compose else _stated(node)
    for marked, name in charts.keyed.items():
        for key, value in as_mapping(node.own.get(name) if marked in node.own else None).items():
            if key in charts.further_flags:
                yield from (Word(str(each), node.line(name, key)) for each in as_list(value))
            elif key not in charts.no_flags:
                yield from _flag(key, value, node.line(name, key), off=name in charts.off)


def not_written(node: ManifestNode, charts: Charts) -> Iterator[str]:
    """Yield the assumption on each key that is false, for which a chart may write a flag or nothing."""
    for name in charts.keyed.values():
        for key, value in as_mapping(node.own.get(name) if name not in charts.off else None).items():
            if value is False and key not in charts.no_flags:
                yield f"{key}: false (line {node.line(name, key)}) is taken as no flag, as what the chart writes is not known"


def entered_twice(stated: Sequence[Word], image: str, file: str, facts: LaunchFacts) -> Iterator[Fault]:
    """Yield the fault of arguments that start a server or a shell, given to an image whose own command is the server."""
    first = stated[0] if stated else Word("", None)
    words = (words for part, words in facts.serving_images.items() if part in image)
    if first.text.rpartition("/")[2] in next(words, ()):
        what = f"is an argument of the server that {image.partition('@')[0]} starts itself, which refuses it"
        yield Fault(what, file, first.line, first.text, "the words as `command`, or as the entrypoint of Docker")


def refused(node: ManifestNode, charts: Charts) -> Iterator[Fault]:
    """Yield the fault of each key with which a chart starts something that is not read."""
    for key, what in charts.refused.items():
        if node.own.get(key):
            yield Fault(what, node.file, node.line(key), key, "`deployments:` with its layout")
    per_worker = value_at(node.own, *charts.bundle_of_worker, "GPU")
    if per_worker not in (None, 1):
        what, line = f"is {per_worker} GPUs for each worker, which are not counted", node.line(*charts.bundle_of_worker)
        yield Fault(what, node.file, line, charts.bundle_of_worker[-1], "`bundles`, or 1 GPU for each")


def switched_off(node: ManifestNode, charts: Charts) -> Word | None:
    """The key by which a chart makes nothing of a container, as its path and its line; None if the chart makes it."""
    for depth in range(len(node.above), 0, -1):
        around, path = as_mapping(node.above[depth - 1]), node.path[: depth - 1]
        for key in charts.switches:
            if around.get(key) is False:
                return Word(".".join(map(str, (*path, key))), line_of(node.document, (*path, key)))
    return None


def of_shell(node: ManifestNode, variables: Mapping[str, str]) -> Iterator[Fault]:
    """Yield the fault of each word with a variable in the form of a shell, which does not read the items of a list."""
    for name in COMMANDS:
        for number, each in enumerate(as_list(node.own.get(name))):
            spaced = isinstance(each, str) and bool(set(each) & set(" \n"))  # may be the text of a shell
            for found in () if spaced else VARIABLE.finditer(str(each)):
                named = found[2] or found[6]
                if found["rule"] or named in variables:
                    what = f"holds {found[0]}, which no shell replaces here"
                    yield Fault(
                        what, node.file, node.line(name, number), name, f"$({named}) of its environment, or a value"
                    )


def of_compose(node: ManifestNode, variables: Mapping[str, str]) -> Iterator[Fault]:
    """Yield the fault of each command with a variable of the container, which Compose does not read: it has its shell and .env."""
    for name in ("command", "entrypoint"):
        found = next((each for each in _OF_SHELL.finditer(str(node.own.get(name))) if each[1] in variables), None)
        if found:
            what = f"takes ${found[1]} of Compose's shell or .env, not of the service's environment"
            yield Fault(what, node.file, node.line(name), name, "its value")


def _stated(node: ManifestNode) -> Iterator[Word]:
    for name in COMMANDS:
        value = node.own.get(name)
        if isinstance(value, str):
            yield from shell_words(value, node.file, node.line(name) or 1)
        elif isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value):
            for number, each in enumerate(value):
                spot = node.document.spots.get((*node.path, name, number))
                yield Word(
                    spot.text if spot and spot.text is not None else str(each),
                    spot.line if spot else node.line(name),
                )


def _flag(key: str, value: object, line: int | None, *, off: bool) -> Iterator[Word]:
    """Yield the flag for a key, such as `tensorParallelSize: 2` or `enforce_eager: true`; with `off` also for one that is false."""
    flag = f"--{_CAPITAL.sub('-', key).lower().replace('_', '-')}"
    if value is True or (value is False and off):
        yield Word(flag if value else flag.replace("--", "--no-", 1), line)
    elif isinstance(value, list):
        yield from (Word(str(each), line) for each in (flag, *value))
    elif value not in (False, None, ""):
        yield Word(f"{flag}={json.dumps(value) if isinstance(value, dict) else value}", line)


def _unescaped(word: Word) -> Word:
    """A word of Compose; in the text of a shell, `$$` is a variable of the container."""
    return word._replace(text=word.text.replace("$$", "$")) if set(word.text) & set(" \n") else word


def parallel(
    holders: Sequence[Mapping[str, object]], stated: Sequence[Word], line: int | None, charts: Charts
) -> Iterator[Word]:
    """Yield the flags that a chart or a controller adds for `parallelism: {tensor: 4, expert: true}`."""
    stated_ = (value_at(each, name) for each in holders for name in ("parallelism", charts.workers))
    sizes: dict[str, object] = next((each for each in stated_ if isinstance(each, dict)), {})
    given = {word.text.partition("=")[0] for word in stated}
    for name, flag in charts.parallel.items():
        if sizes.get(name) is True and flag not in given:
            yield Word(flag, line)
        elif sizes.get(name) not in (None, False) and flag not in given:
            yield from (Word(flag, line), Word(str(sizes[name]), line))


def unknown_sizes(node: ManifestNode, charts: Charts) -> Iterator[Fault]:
    """Yield the fault of each key of `parallelism` that an LLMInferenceService does not have."""
    for depth in range(len(node.above), 0, -1):
        sizes = value_at(node.above[depth - 1], "parallelism")
        if isinstance(sizes, dict):
            for key in sizes:
                if str(key) not in (*charts.parallel, *charts.other_sizes):
                    line = line_of(node.document, (*node.path[: depth - 1], "parallelism", key))
                    fault = unknown(str(key), "key of parallelism", charts.parallel, field=f"parallelism.{key}")
                    yield replace(fault, file=node.file, line=line)
            return
