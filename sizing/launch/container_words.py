"""The words of a container's command in a manifest: as they stand, or as a chart, a controller or Ray Serve writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sizing.launch.beside import SERVICES
from sizing.launch.flags import Word
from sizing.launch.nodes import ManifestNode, as_list, as_mapping, line_of, value_at
from sizing.launch.shell import words as shell_words
from sizing.specs.errors import Fault, unknown
from sizing.specs.launch import Charts

COMMANDS = ("entrypoint", "command", "args")
KEYED, EXTRA = "vllmConfig", "extraArgs"  # keys of Helm values if the chart writes the flags
# Of Ray Serve, which starts vLLM by its arguments in Python: its model, these arguments, and its file in a RayService.
RAY_MODEL, RAY_FLAGS, RAY_TYPE, RAY_FILE = "model_loading_config", "engine_kwargs", "accelerator_type", "serveConfigV2"
WORKERS = "workerSpec"  # in KServe, which starts a node for each stage of the pipeline
_CAPITAL = re.compile(r"(?<!^)([A-Z])")


def words_of(node: ManifestNode) -> Iterator[Word]:
    """Yield the words of a container's command: the items of lists, and text split as in a shell; and those of flags by keys."""
    yield from map(_unescaped, _stated(node)) if node.path[:1] == (SERVICES,) else _stated(node)
    for key, value in as_mapping(node.own.get(KEYED)).items():
        yield from _keyed(key, value, node.line(KEYED, key))
    for key, value in as_mapping(node.own.get(RAY_FLAGS) if RAY_MODEL in node.own else None).items():
        yield from _of_python(key, value, node.line(RAY_FLAGS, key))


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


def _of_python(key: str, value: object, line: int | None) -> Iterator[Word]:
    """Yield the flag of an argument of vLLM in Python, such as `tensor_parallel_size: 2` or `enforce_eager: false`."""
    flag = key.replace("_", "-")
    yield from () if value is None else (Word(f"--no-{flag}" if value is False else f"--{flag}", line),)
    if isinstance(value, dict):
        yield Word(json.dumps(value), line)
    elif value is not None and not isinstance(value, bool):
        yield from (Word(str(each), line) for each in (value if isinstance(value, list) else [value]))


def _unescaped(word: Word) -> Word:
    """A word of Compose; in the text of a shell, `$$` is a variable of the container."""
    return word._replace(text=word.text.replace("$$", "$")) if set(word.text) & set(" \n") else word


def _keyed(key: str, value: object, line: int | None) -> Iterator[Word]:
    """Yield the flag that a chart writes for a key, such as `tensorParallelSize: 2`. `extraArgs` has further flags."""
    if key == EXTRA:
        yield from (Word(str(each), line) for each in as_list(value))
        return
    flag = f"--{_CAPITAL.sub(lambda found: f'-{found[1]}', key).lower()}"
    if value is True:
        yield Word(flag, line)
    elif value not in (False, None, "") and not isinstance(value, (dict, list)) and key != "v1":
        yield from (Word(flag, line), Word(str(value), line))


def parallel(
    holders: Sequence[Mapping[str, object]], stated: Sequence[Word], line: int | None, charts: Charts
) -> Iterator[Word]:
    """Yield the flags that a chart or a controller adds for `parallelism: {tensor: 4, expert: true}`."""
    stated_ = (value_at(each, name) for each in holders for name in ("parallelism", WORKERS))
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
