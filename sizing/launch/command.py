"""The command line of an engine, as a shell script: one instance, to be started on each group of GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from sizing.launch.answered import Started

FOLD = " \\\n    "


def script(parts: Sequence[Started]) -> str:
    """The commands of all parts, each with its file of settings and its variables before it."""
    return "\n\n".join("\n".join(_lines(part)) for part in parts)


def _lines(part: Started) -> Iterator[str]:
    launched = part.launched
    gpus = f"{part.gpus} x {part.gpu_type.gpu.name}"
    role = "" if launched.role == "whole" else f" of the {launched.role} pool"
    count = f"{launched.replicas} replicas{role}: start" if launched.replicas != 1 else f"One replica{role}: start"
    yield f"# {count} this on {'each group of ' if launched.replicas != 1 else ''}{gpus} ({part.dialect.title} {part.dialect.version})."
    if part.args.file is not None:
        assert part.dialect.engine.file is not None
        yield f"cat > {part.dialect.engine.file.name} <<'YAML'\n{part.args.file}YAML"
    yield folded((*part.command, *part.args.words, *part.dialect.engine.host), part.args.env)


def folded(words: Sequence[str], env: Sequence[tuple[str, str]] = ()) -> str:
    """A command with a flag and its values on each line, and variables before it."""
    lines = [[f"{name}={shlex.quote(value)}" for name, value in env]]
    for word in words:
        if word.startswith("--") or not lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return FOLD.join(" ".join(line) for line in lines if line)
