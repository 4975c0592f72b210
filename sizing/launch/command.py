"""The command line of an engine as a shell script. It starts one instance, on one group of GPUs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from sizing.launch.answered import Started
from sizing.launch.script_text import ABOUT
from sizing.launch.terms import PLACES

FOLD = " \\\n    "


def script(parts: Sequence[Started]) -> str:
    """The commands of all parts, each after its settings file and its variables."""
    return "\n\n".join("\n".join(_lines(part)) for part in parts)


def _lines(part: Started) -> Iterator[str]:
    launched, engine = part.launched, part.dialect.engine
    role = "" if launched.role == "whole" else f" of the {launched.role} pool"
    where = f"{part.node_gpus} x {part.gpu_type.gpu.name}"
    where = where if part.nodes == 1 else f"{part.nodes} nodes with {where}"
    count, on = ("One replica", "") if launched.replicas == 1 else (f"{launched.replicas} replicas", " each group of")
    yield f"# {count}{role}: start this on{on} {where} ({part.dialect.title} {part.dialect.version})."
    if part.launcher:
        yield "# Run it in a folder that all nodes share."
    said = {
        "name": part.name,
        "gpu": part.profile,
        "replicas": launched.replicas,
        "engine": f"{engine.name}:{part.dialect.version}",
        **part.holds,
        **({} if part.drafts is None else {"speculative": part.drafts}),
    }
    if part.args.file is not None and engine.file is not None:
        yield f"cat > {_own(part, engine.file.name)} <<'YAML'\n{part.args.file}YAML"
    if part.nodes > 1 and not part.launcher:
        yield 'HEAD="${HEAD:?the address of the first node}" # of each group'
    if engine.side_channel is not None and launched.role != "whole":
        yield f'export {engine.side_channel.host}="$(hostname -i)" # at which instances of the other pool reach this one'
    *before, serves = _folded(part, first=True)
    yield from (*before, f"# {' '.join(f'{ABOUT}{name}={value}' for name, value in said.items())}", serves)
    if part.nodes > 1 and not part.launcher:
        yield "# On each of the other nodes:"
        if part.further is not None:
            yield f"RANK=1 # of the node: 1 to {part.nodes - 1}"
        yield from _folded(part, first=False)


def _folded(part: Started, *, first: bool) -> list[str]:
    return [folded([_own(part, word) for word in words], part.args.env) for words in part.commands(first=first)]


def _own(part: Started, word: str) -> str:
    """The word; the settings file of each of two pools has a name of its own, as both may be written in one folder."""
    file, role = part.dialect.engine.file, part.launched.role
    return f"{role}-{word}" if file is not None and word == file.name and role != "whole" else word


def folded(words: Sequence[str], env: Sequence[tuple[str, str]] = ()) -> str:
    """A command after its variables, with one flag and its values on each line."""
    lines = [[f"{name}={shlex.quote(value)}" for name, value in env]]
    for word in words:
        if word.startswith("--") or not lines[-1]:
            lines.append([])
        lines[-1].append(quoted(word))
    return FOLD.join(" ".join(line) for line in lines if line)


def quoted(word: str, head: str = "HEAD", rank: str = "RANK") -> str:
    """A word quoted for a shell; the placeholders of nodes become shell variables named `head` and `rank`."""

    def variable(found: re.Match[str]) -> str:
        return f"$(({rank} * {found[2]}))" if found[2] else f"${head if found[1] == 'head' else rank}"

    return f'"{PLACES.sub(variable, word)}"' if PLACES.search(word) else shlex.quote(word)
