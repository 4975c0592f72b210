"""The documents of a manifest: their mappings with the values around them, and what other documents give to a container.

Other documents give it files, variables and autoscalers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from sizing.catalog.files import is_file, read_text
from sizing.catalog.shelf import only
from sizing.catalog.yaml import Spot, YamlDocument, documents
from sizing.launch.script_text import with_variables
from sizing.launch.terms import Word
from sizing.specs.errors import Fault, FieldPath, InputError, raise_any
from sizing.specs.launch import Charts, LaunchFacts
from sizing.specs.units import printable

SERVICES = "services"  # in Compose
MERGE = "<<"  # in YAML
MOST_NODES = 200_000  # nodes in a file, with aliases followed


class ManifestNode(NamedTuple):
    """A mapping in a manifest, with the values around it: the outermost first, the mapping itself last."""

    above: tuple[object, ...]
    path: FieldPath
    document: YamlDocument
    file: str

    @property
    def own(self) -> Mapping[str, object]:
        """The mapping itself."""
        return as_mapping(self.above[-1])

    @property
    def of_compose(self) -> bool:
        """Whether it is part of a file of Docker Compose."""
        return self.path[:1] == (SERVICES,) and value_at(self.document.data, "kind") is None

    @property
    def holders(self) -> list[Mapping[str, object]]:
        """The mapping itself, then the mappings around it, nearest first."""
        return [each for each in reversed(self.above) if isinstance(each, dict)]

    def line(self, *steps: str | int) -> int | None:
        """The line of the value at `steps` below it, or of the nearest value around that."""
        return line_of(self.document, (*self.path, *steps))

    def fault(self, message: str, *steps: str | int, allowed: str | None = None, field: str | None = None) -> Fault:
        """A fault at the line of the value at `steps`, named by the last key of them if not by `field`."""
        return Fault(message, self.file, self.line(*steps), field or str(steps[-1]), allowed)

    def nearest(self, *paths: Sequence[str]) -> Iterator[tuple[object, int | None, str]]:
        """Yield the plain values at `paths` of the mapping and those around it, nearest first, with line and path in words."""
        for depth in range(len(self.above), 0, -1):
            for steps in paths:
                value = value_at(self.above[depth - 1], *steps)
                if value is not None and not isinstance(value, (dict, list)):
                    yield value, line_of(self.document, (*self.path[: depth - 1], *steps)), ".".join(steps)


def manifests_of(document: YamlDocument) -> Iterator[YamlDocument]:
    """Yield a document, or the manifests of a List, each as a document of its own."""
    items = value_at(document.data, "items")
    if value_at(document.data, "kind") != "List" or not isinstance(items, list):
        yield document
        return
    spots: list[dict[FieldPath, Spot]] = [{} for _ in items]
    for path, spot in document.spots.items():
        if len(path) > 1 and path[0] == "items" and isinstance(path[1], int):
            spots[path[1]][path[2:]] = spot
    for item, places in zip(items, spots, strict=True):
        yield document._replace(data=item, spots=places)


def held(document: YamlDocument, file: str, *steps: str) -> Iterator[YamlDocument]:
    """Yield the documents in a text that a document holds at `steps`, with their lines in the file."""
    text, spot = value_at(document.data, *steps), document.spots.get(steps)
    for each in documents(text, file) if isinstance(text, str) else ():
        before = spot.line if spot else 0
        spots = {path: place._replace(line=place.line + before) for path, place in each.spots.items()}
        yield each._replace(spots=spots)


def merged(document: YamlDocument) -> YamlDocument:
    """A document with the keys that its merge keys (`<<`) add to mappings. A mapping's own keys take precedence."""
    return document._replace(data=_merged(document.data, {}))


def _merged(value: object, done: dict[int, object]) -> object:
    """A value with merge keys applied; `done` holds each shared value once, by its identity."""
    if not isinstance(value, (dict, list)):
        return value
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, list):
        items: list[object] = []
        done[id(value)] = items
        items += (_merged(each, done) for each in value)
        return items
    found: dict[str, object] = {}
    done[id(value)] = found
    added = value.get(MERGE)
    for each in reversed(added if isinstance(added, list) else [added]):
        found |= as_mapping(_merged(each, done))
    found |= {key: _merged(each, done) for key, each in value.items() if key != MERGE}
    return found


def nodes(document: YamlDocument, file: str) -> Iterator[ManifestNode]:
    """Yield each mapping in a document. Raises InputError for far too many."""
    left: list[tuple[tuple[object, ...], FieldPath]] = [((document.data,), ())]
    seen = 0
    while left:
        above, path = left.pop()
        seen += 1
        if seen > MOST_NODES:
            raise InputError(f"has more than {MOST_NODES:,} entries", file=file)
        if isinstance(above[-1], dict):
            yield ManifestNode(above, path, document, file)
        left += reversed(
            [((*above, value), (*path, key)) for key, value in _items(above[-1]) if isinstance(value, (dict, list))]
        )


def _items(node: object) -> Iterator[tuple[str | int, object]]:
    yield from node.items() if isinstance(node, dict) else enumerate(as_list(node))


def as_mapping(value: object) -> dict[str, object]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def value_at(node: object, *steps: str) -> object:
    """The value at the keys `steps` of nested mappings; None without one."""
    for step in steps:
        node = as_mapping(node).get(step)
    return node


def line_of(document: YamlDocument, path: FieldPath) -> int | None:
    """The line of the value at a path, or of the nearest value around it; None without one."""
    around = (document.spots.get(path[:end]) for end in range(len(path), -1, -1))
    return next((spot.line for spot in around if spot is not None), None)


File = tuple[str, int]  # its text, and its first line
OF_ITS_OWN = 0  # in place of the first line of a text that is a file of its own


class ConfigMap(NamedTuple):
    """A ConfigMap: its plain values, and its files by their names."""

    name: str
    namespace: str | None
    values: Mapping[str, str]
    files: Mapping[str, File]


class Scaler(NamedTuple):
    """An autoscaler of the manifest with a name and, where it says so, a kind: its fewest and most replicas, and what states them."""

    name: str
    namespace: str | None
    kind: str | None
    fewest: object
    most: object
    field: str
    line: int | None


class OtherDocuments(NamedTuple):
    """What the other documents of a file state. `configs` are those of Compose by their names, and `maps` those of each name."""

    configs: Mapping[str, File]
    maps: Mapping[str, Sequence[ConfigMap]]
    scalers: Sequence[Scaler]


Named = TypeVar("Named", ConfigMap, Scaler)


def beside(documents: Sequence[YamlDocument], charts: Charts) -> OtherDocuments:
    """What the documents of a file state about containers in others of them."""
    configs = {name: file for document in documents for name, file in _texts(document, "configs", "content")}
    maps: dict[str, list[ConfigMap]] = {}
    for each in _maps(documents):
        maps.setdefault(each.name, []).append(each)
    return OtherDocuments(configs, maps, list(_scalers(documents, charts)))


def _texts(document: YamlDocument, section: str, *steps: str) -> Iterator[tuple[str, File]]:
    """Yield the texts of a section by name, each with its first line."""
    for name, each in as_mapping(value_at(document.data, section)).items():
        text, spot = value_at(each, *steps), document.spots.get((section, name, *steps))
        if isinstance(text, str):
            yield str(name), (text, (spot.line if spot else 0) + 1)


def _maps(documents: Sequence[YamlDocument]) -> Iterator[ConfigMap]:
    """Yield the ConfigMaps, and anything else with texts under `data`."""
    for document in documents:
        data = as_mapping(value_at(document.data, "data"))
        values = {str(key): str(each) for key, each in data.items() if not isinstance(each, (dict, list))}
        name, namespace = (value_at(document.data, "metadata", key) for key in ("name", "namespace"))
        if values:
            yield ConfigMap(str(name), _text(namespace), values, dict(_texts(document, "data")))


def _scalers(documents: Sequence[YamlDocument], charts: Charts) -> Iterator[Scaler]:
    for document in documents:
        keys = charts.scalers.get(str(value_at(document.data, "kind")))
        target = value_at(document.data, "spec", "scaleTargetRef")
        name = value_at(target, "name")
        if keys is not None and isinstance(name, str):
            fewest, most = (value_at(document.data, "spec", key) for key in keys)
            namespace, kind = value_at(document.data, "metadata", "namespace"), value_at(target, "kind")
            line = line_of(document, ("spec", keys[0]))
            yield Scaler(name, _text(namespace), _text(kind), 1 if fewest is None else fewest, most, keys[0], line)


def scalers_of_chart(node: ManifestNode, charts: Charts) -> Iterator[Scaler]:
    """Yield the autoscaler that a chart makes for a container: the nearest one that is enabled."""
    for depth in range(len(node.above), 0, -1):
        for name, (fewest, most) in charts.chart_scalers.items():
            stated = as_mapping(value_at(node.above[depth - 1], name))
            if stated.get("enabled") is True:
                line = line_of(node.document, (*node.path[: depth - 1], name, fewest))
                yield Scaler(name, None, None, stated.get(fewest, 1), stated.get(most), f"{name}.{fewest}", line)
                return


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def of_namespace(found: Iterable[Named], node: ManifestNode) -> list[Named]:
    """Those in the namespace of a container; else those of which, or of the container, no namespace is stated."""
    named, listed = _text(value_at(node.document.data, "metadata", "namespace")), list(found)
    same = [each for each in listed if each.namespace == named]
    return same[-1:] or [each for each in listed if named is None or each.namespace is None]


def map_named(name: object, node: ManifestNode, documents: OtherDocuments) -> ConfigMap | None:
    """The ConfigMap that a container names; None where the file does not say which it is."""
    found = of_namespace(documents.maps.get(str(name), ()), node)
    return found[0] if len(found) == 1 else None


def files_of(node: ManifestNode, documents: OtherDocuments) -> dict[str, File]:
    """The files that a container sees, by path, and by name where no two differ.

    Of a container that mounts no ConfigMap, or that a chart mounts, those of all ConfigMaps that it may see.
    """
    mounted = list(_mounted(node, documents))
    if not mounted:
        seen = [each for named in documents.maps.values() for each in of_namespace(named, node)]
        mounted = [(name, file) for each in seen for name, file in each.files.items()]
    paths = [(path, file) for path, file in mounted if file is not None]
    texts: dict[str, set[str]] = {}
    for path, file in paths:
        texts.setdefault(path.rpartition("/")[2], set()).add(file[0])
    by_name = {name: file for path, file in paths if len(texts[name := path.rpartition("/")[2]]) == 1}
    return {**documents.configs, **by_name, **{path: file for path, file in paths if "/" in path}}


def _mounted(node: ManifestNode, documents: OtherDocuments) -> Iterator[tuple[str, File | None]]:
    """Yield the path of each file that a container mounts; None for what the manifest does not hold."""
    for mount in as_list(node.own.get("configs")) if node.of_compose else []:
        source, target = value_at(mount, "source"), value_at(mount, "target")
        if isinstance(source, str) and isinstance(target, str):
            yield target, documents.configs.get(source)
    volumes = [volume for holder in node.holders for volume in as_list(holder.get("volumes"))]
    mounts, most = as_list(node.own.get("volumeMounts")), only(LaunchFacts).pod_entries
    if len(mounts) > most:
        raise InputError(
            f"has a container with more than {most} mounts", file=node.file, line=node.line("volumeMounts")
        )
    for mount in mounts:
        path, part = str(value_at(mount, "mountPath")).rstrip("/"), value_at(mount, "subPath")
        same = (each for each in volumes if value_at(each, "name") == value_at(mount, "name"))
        for key, target, file in (found for volume in same for found in _of_volume(volume, node, documents)):
            if part in (None, target):
                yield path if part else f"{path}/{target or key}", file


def _of_volume(
    volume: object, node: ManifestNode, documents: OtherDocuments
) -> Iterator[tuple[str, str | None, File | None]]:
    """Yield the key, the path and the text of each file of a volume."""
    parts = [
        value_at(volume, "configMap"),
        *(value_at(each, "configMap") for each in as_list(value_at(volume, "projected", "sources"))),
    ]
    for part in (each for each in parts if each is not None):
        found = map_named(value_at(part, "name"), node, documents)
        if found is None:
            yield "", None, None
            continue
        paths = {str(value_at(each, "key")): str(value_at(each, "path")) for each in as_list(value_at(part, "items"))}
        for key, file in found.files.items():
            if not paths or key in paths:
                yield key, paths.get(key, key), file


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


def check_whole(documents: Sequence[YamlDocument], file: str) -> None:
    """Raise InputError for a Compose file that others add to, which Compose itself resolves.

    It may extend services, include files, or have a name with which Compose reads a second file.
    """
    faults = [
        Fault("extends another service", file, line_of(document, (SERVICES, name)), name, allowed=COMPOSED)
        for document in documents
        for name, service in as_mapping(value_at(document.data, SERVICES)).items()
        if value_at(service, "extends") is not None
    ]
    for document in documents:
        if value_at(document.data, "include") is not None and value_at(document.data, "kind") is None:
            line = line_of(document, ("include",))
            faults.append(Fault("adds other files, which are not read", file, line, "include", allowed=COMPOSED))
    raise_any(faults)
    path = Path(file)
    if path.name in OWN_NAMES:
        others = (path.with_name(f"{path.stem}.override{end}") for end in (".yml", ".yaml"))
        if other := next((each.name for each in others if is_file(each)), None):
            what = f"{other} is beside it, which Compose starts with it"
            raise InputError(what, file=file, allowed=COMPOSED)


def environment_files(node: ManifestNode) -> Iterator[tuple[str, bool]]:
    """Yield the name of each `env_file` of a Compose service, and whether the service needs it."""
    listed = node.own.get("env_file") if node.of_compose else None
    for each in listed if isinstance(listed, list) else [listed]:
        name = each if isinstance(each, str) else value_at(each, "path")
        if isinstance(name, str):
            yield name, value_at(each, "required") is not False


def missing(node: ManifestNode) -> Iterator[Fault]:
    """Yield the fault of each `env_file` of a Compose service that is not here and must be."""
    for name, needed in environment_files(node):
        if needed and not is_file(Path(node.file).parent / name):
            what = f"{printable(name)} is not here: Compose does not start without it"
            yield node.fault(what, "env_file", allowed="the file, or `required: false` if it may be missing")


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
