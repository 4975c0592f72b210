"""Writes the manifests of a deployment with the template of a target: Kubernetes, KServe, Docker Compose."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from sizing.catalog.shelf import only
from sizing.launch.answered import Started
from sizing.launch.command import quoted
from sizing.launch.manifests import DRAFTS_LABEL, GPU_LABEL
from sizing.launch.script_text import ABOUT
from sizing.launch.terms import PLACES
from sizing.specs.launch import LaunchFacts

TEMPLATES = Path(__file__).parent / "templates"
SETTINGS = "/etc/llmsize"
PLACE_OF = {
    "head": "LWS_LEADER_ADDRESS",
    "rank": "LWS_WORKER_INDEX",
}  # a LeaderWorkerSet sets these in each of its pods


class ComposeService(NamedTuple):
    """A replica in a Compose file: its name, the numbers of its GPUs, and the profile of its server (if there are several)."""

    part: Started
    name: str
    devices: tuple[str, ...]
    profile: str | None


def placed(parts: Sequence[Started]) -> list[ComposeService]:
    """The replicas of all parts, each with its own GPUs by number.

    Docker would give the same first GPUs to every container that requests only a count.
    """
    found: list[tuple[Started, str, int, int]] = []
    server, at = 1, 0
    for part in parts:
        for number in range(1, (part.launched.replicas or 1) + 1):
            before = found[-1][0].gpu_type.id if found else part.gpu_type.id
            if at + part.gpus > part.gpu_type.gpu.datasheet.node.gpus or before != part.gpu_type.id:
                server, at = server + 1, 0
            found.append((part, part.name if part.launched.replicas == 1 else f"{part.name}-{number}", server, at))
            at += part.gpus
    return [
        ComposeService(part, name, tuple(map(str, range(at, at + part.gpus))), None if server == 1 else f"server-{on}")
        for part, name, on, at in found
    ]


def manifest(parts: Sequence[Started], target: str) -> str:
    """The documents of all parts as one file, with keys in the order of the template and without folded lines."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # loaded only to write a manifest

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,  # the output is YAML, with texts quoted as JSON
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "facts": only(LaunchFacts), "command_of": command_of, "placed": placed, "compose_command": compose_command, "facts_of": facts_of, "settings_folder": SETTINGS,
    }  # fmt: skip
    text = environment.get_template(f"{target}.yaml.j2").render(parts=parts)
    found = (each for each in yaml.safe_load_all(text) if each is not None)
    return "---\n".join(yaml.safe_dump(each, sort_keys=False, width=10_000) for each in found).rstrip("\n")


def facts_of(part: Started, *, always: bool = False) -> dict[str, str]:
    """What the labels of a deployment say and no other field does: the GPU type (`always`, or if no node label is known to), what a checkpoint
    of another name holds, and drafts.
    """
    gpu = {GPU_LABEL: part.profile} if always or part.card not in only(LaunchFacts).node_labels else {}
    holds = {f"{ABOUT}{name}": value for name, value in part.holds.items()}
    return {**gpu, **holds, **({} if part.drafts is None else {DRAFTS_LABEL: part.drafts})}


def command_of(part: Started, first: bool) -> tuple[list[str], list[str]]:
    """The command of a container and its arguments. Several commands, or one that computes with its rank, run in a shell."""
    *before, last = part.commands(first=first)
    if before or any((place := PLACES.search(word)) and place[2] for word in last):
        lines = (" ".join(quoted(word, *PLACE_OF.values()) for word in words) for words in (*before, ("exec", *last)))
        return ["/bin/sh", "-c"], [" && ".join(lines)]
    file = part.dialect.engine.file
    words = [PLACES.sub(lambda found: f"$({PLACE_OF[found[1]]})", word) for word in last]
    words = [f"{SETTINGS}/{word}" if file is not None and word == file.name else word for word in words]
    begun = len(part.command)
    return words[:begun], words[begun:]


def compose_command(part: Started) -> tuple[list[str], list[str]]:
    """The command and arguments of a Compose service. They run in a shell if the container must state its own address."""
    command, arguments = command_of(part, first=True)
    channel = part.dialect.engine.side_channel
    if part.launched.role == "whole" or channel is None:
        return command, arguments
    return ["/bin/sh", "-c"], [f'{channel.host}="$$(hostname -i)" exec {shlex.join((*command, *arguments))}']
