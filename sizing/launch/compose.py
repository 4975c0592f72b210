"""The variables of a Compose file (those of `.env` beside it, and its defaults), and the other files that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sizing.catalog.files import is_file, read_text
from sizing.catalog.yaml import YamlDocument
from sizing.launch.beside import OF_ITS_OWN
from sizing.launch.expansion import with_variables
from sizing.launch.flags import Word
from sizing.launch.nodes import SERVICES, ManifestNode, as_list, as_mapping, line_of, value_at
from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.units import printable

ENVIRONMENT = ".env"
COMPOSED = "what `docker compose config` makes of it"
OWN_NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")  # which it finds itself
_ENTRY = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=(.*)\Z")
QUOTES = ("'", '"')


def entries(lines: Iterable[str]) -> dict[str, str]:
    """The variables in lines of `NAME=VALUE`, with or without quotes. Other lines are comments."""
    found: dict[str, str] = {}
    for each in filter(None, map(_ENTRY.match, lines)):
        text = each[2].strip()
        plain = text[1:].partition(text[0])[0] if text.startswith(QUOTES) else text.partition(" #")[0].rstrip()
        found[each[1]] = plain if text.startswith("'") else with_variables(plain, found)
    return found


def environment(folder: Path, name: str = ENVIRONMENT) -> dict[str, str]:
    """The variables of a file in a folder; none where there is no such file."""
    path = folder / name
    return entries(read_text(str(path)).splitlines()) if is_file(path) else {}


def check_whole(found: Sequence[YamlDocument], file: str) -> None:
    """Raise InputError for a file that others add to: a service that it extends, or a second file that Compose reads with it."""
    _check_extended(found, file)
    _check_overridden(file)


def _check_extended(found: Sequence[YamlDocument], file: str) -> None:
    """Raise InputError for services of Compose that extend others, and for files that it includes: Compose itself resolves them."""
    faults = [
        Fault("extends another service", file, line_of(document, (SERVICES, name)), name, allowed=COMPOSED)
        for document in found
        for name, service in as_mapping(value_at(document.data, SERVICES)).items()
        if value_at(service, "extends") is not None
    ]
    for document in found:
        if value_at(document.data, "include") is not None and value_at(document.data, "kind") is None:
            line = line_of(document, ("include",))
            faults.append(Fault("adds other files, which are not read", file, line, "include", allowed=COMPOSED))
    raise_any(faults)


def _check_overridden(file: str) -> None:
    """Raise InputError where Compose would add a second file to one of its own name."""
    path = Path(file)
    if path.name in OWN_NAMES:
        others = (path.with_name(f"{path.stem}.override{end}") for end in (".yml", ".yaml"))
        if other := next((each.name for each in others if is_file(each)), None):
            what = f"{other} is beside it, which Compose starts with it"
            raise InputError(what, file=file, allowed=COMPOSED)


def missing(node: ManifestNode) -> Iterator[Fault]:
    """Yield the fault of each `env_file` of a Compose service that is not here and must be."""
    listed = node.own.get("env_file") if node.of_compose else None
    for each in listed if isinstance(listed, list) else [listed]:
        name = each if isinstance(each, str) else value_at(each, "path")
        needed = value_at(each, "required") is not False
        if isinstance(name, str) and needed and not is_file(Path(node.file).parent / name):
            what = f"{printable(name)} is not here: Compose does not start without it"
            yield Fault(
                what,
                node.file,
                node.line("env_file"),
                "env_file",
                "the file, or `required: false` if it may be missing",
            )


def mounted(node: ManifestNode, words: Iterable[Word]) -> dict[str, tuple[str, int]]:
    """The files beside a Compose file that a service mounts and its command names, by their paths in the container."""
    found: dict[str, tuple[str, int]] = {}
    named = {part for word in words for part in word.text.split()}
    for volume in as_list(node.own.get("volumes")):
        source, target = value_at(volume, "source"), value_at(volume, "target")
        if isinstance(volume, str):
            source, target, *_ = (*volume.split(":"), "")
        if not (isinstance(source, str) and isinstance(target, str) and source.startswith(".")):
            continue  # a volume of Docker, or a path of another machine
        for each in named:
            inside = each.removeprefix(target.rstrip("/"))
            path = Path(node.file).parent / f"{source}{inside}"
            if inside != each and inside[:1] in ("", "/") and is_file(path):
                found[each] = (read_text(str(path)), OF_ITS_OWN)
    return found
