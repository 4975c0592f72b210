"""What the other documents of a manifest state about a container: files, variables, and autoscalers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sizing.catalog.shelf import only
from sizing.catalog.yaml import YamlDocument
from sizing.launch.nodes import ManifestNode, as_list, as_mapping, line_of, value_at
from sizing.specs.errors import InputError
from sizing.specs.launch import Charts, LaunchFacts

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


def beside(found: Sequence[YamlDocument], charts: Charts) -> OtherDocuments:
    """What the documents of a file state about containers in others of them."""
    configs = {name: file for document in found for name, file in _texts(document, "configs", "content")}
    maps: dict[str, list[ConfigMap]] = {}
    for each in _maps(found):
        maps.setdefault(each.name, []).append(each)
    return OtherDocuments(configs, maps, list(_scalers(found, charts)))


def _texts(document: YamlDocument, section: str, *steps: str) -> Iterator[tuple[str, File]]:
    """Yield the texts of a section by name, each with its first line."""
    for name, each in as_mapping(value_at(document.data, section)).items():
        text, spot = value_at(each, *steps), document.spots.get((section, name, *steps))
        if isinstance(text, str):
            yield str(name), (text, (spot.line if spot else 0) + 1)


def _maps(found: Sequence[YamlDocument]) -> Iterator[ConfigMap]:
    """Yield the ConfigMaps, and anything else with texts under `data`."""
    for document in found:
        data = as_mapping(value_at(document.data, "data"))
        values = {str(key): str(each) for key, each in data.items() if not isinstance(each, (dict, list))}
        name, namespace = (value_at(document.data, "metadata", key) for key in ("name", "namespace"))
        if values:
            yield ConfigMap(str(name), _text(namespace), values, dict(_texts(document, "data")))


def _scalers(found: Sequence[YamlDocument], charts: Charts) -> Iterator[Scaler]:
    for document in found:
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


def map_named(name: object, node: ManifestNode, others: OtherDocuments) -> ConfigMap | None:
    """The ConfigMap that a container names; None where the file does not say which it is."""
    found = of_namespace(others.maps.get(str(name), ()), node)
    return found[0] if len(found) == 1 else None


def files_of(node: ManifestNode, others: OtherDocuments) -> dict[str, File]:
    """The files that a container sees, by path, and by name where no two differ.

    Of a container that mounts no ConfigMap, or that a chart mounts, those of all ConfigMaps that it may see.
    """
    mounted = list(_mounted(node, others))
    if not mounted:
        seen = [each for named in others.maps.values() for each in of_namespace(named, node)]
        mounted = [(name, file) for each in seen for name, file in each.files.items()]
    paths = [(path, file) for path, file in mounted if file is not None]
    texts: dict[str, set[str]] = {}
    for path, file in paths:
        texts.setdefault(path.rpartition("/")[2], set()).add(file[0])
    by_name = {name: file for path, file in paths if len(texts[name := path.rpartition("/")[2]]) == 1}
    return {**others.configs, **by_name, **{path: file for path, file in paths if "/" in path}}


def _mounted(node: ManifestNode, others: OtherDocuments) -> Iterator[tuple[str, File | None]]:
    """Yield the path of each file that a container mounts; None for what the manifest does not hold."""
    for mount in as_list(node.own.get("configs")) if node.of_compose else []:
        source, target = value_at(mount, "source"), value_at(mount, "target")
        if isinstance(source, str) and isinstance(target, str):
            yield target, others.configs.get(source)
    volumes = [volume for holder in node.holders for volume in as_list(holder.get("volumes"))]
    mounts, most = as_list(node.own.get("volumeMounts")), only(LaunchFacts).pod_entries
    if len(mounts) > most:
        raise InputError(
            f"has a container with more than {most} mounts", file=node.file, line=node.line("volumeMounts")
        )
    for mount in mounts:
        path, part = str(value_at(mount, "mountPath")).rstrip("/"), value_at(mount, "subPath")
        same = (each for each in volumes if value_at(each, "name") == value_at(mount, "name"))
        for key, target, file in (found for volume in same for found in _of_volume(volume, node, others)):
            if part in (None, target):
                yield path if part else f"{path}/{target or key}", file


def _of_volume(
    volume: object, node: ManifestNode, others: OtherDocuments
) -> Iterator[tuple[str, str | None, File | None]]:
    """Yield the key, the path and the text of each file of a volume."""
    parts = [
        value_at(volume, "configMap"),
        *(value_at(each, "configMap") for each in as_list(value_at(volume, "projected", "sources"))),
    ]
    for part in (each for each in parts if each is not None):
        found = map_named(value_at(part, "name"), node, others)
        if found is None:
            yield "", None, None
            continue
        paths = {str(value_at(each, "key")): str(value_at(each, "path")) for each in as_list(value_at(part, "items"))}
        for key, file in found.files.items():
            if not paths or key in paths:
                yield key, paths.get(key, key), file
