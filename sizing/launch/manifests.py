"""Containers in manifests of any kind: Kubernetes, KServe, Helm values, llm-d, Dynamo, Docker Compose.

No kind has a reader of its own: a container is what holds a command, its replicas and nodes are said by what it stands in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sizing.catalog.yaml import Path, YamlDocument, documents
from sizing.launch.flags import Word
from sizing.launch.shell import words as shell_words
from sizing.specs.errors import InputError
from sizing.specs.launch import LaunchFacts

COMMANDS = ("entrypoint", "command", "args")
KEYED, EXTRA = "vllmConfig", "extraArgs"  # of Helm values whose chart writes the flags
REPLICAS = ("replicas", "replicaCount", "minReplicas")
MODELS = ("storageUri", "modelURL", "modelUri", "hfModel")
PARALLEL = {"tensor": "--tensor-parallel-size", "pipeline": "--pipeline-parallel-size", "data": "--data-parallel-size"}
ONE = ("Pod", "Deployment", "StatefulSet", "Job", "ReplicaSet")  # kinds that run one replica where nothing says more
MOST_NODES = 200_000  # of a file, aliases followed
GPU_LABEL = "llmsize/gpu"
_CAPITAL = re.compile(r"(?<!^)([A-Z])")
_TEMPLATED = "{{"


@dataclass(slots=True)
class Container:
    """What a manifest says of one container: its command, and what surrounds it; `lines` are those of its fields."""

    name: str
    path: tuple[str, ...]
    words: tuple[Word, ...] = ()
    image: str = ""
    keyed: bool = False
    model: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    replicas: int | None = None
    gpus: int | None = None
    labels: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    lines: dict[str, int | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def containers(text: str, file: str, facts: LaunchFacts) -> list[Container]:
    """The containers of a file that run a command. Raises InputError for what is no YAML, or far too large."""
    try:
        found = documents(text, file)
    except InputError as error:
        if _TEMPLATED in text:
            raise InputError("is a template", file=file, allowed="what `helm template` makes of it") from None
        raise error from None
    files = _files(found)
    return [
        container
        for document in found
        for above, path in _nodes(document, file)
        if (container := _container(above, path, document, file, facts, files)) is not None
    ]


def _nodes(document: YamlDocument, file: str) -> Iterator[tuple[tuple[object, ...], Path]]:
    """Yield each mapping with all that it stands in (outermost first, itself last) and its path."""
    left: list[tuple[tuple[object, ...], Path]] = [((document.data,), ())]
    seen = 0
    while left:
        above, path = left.pop()
        seen += 1
        if seen > MOST_NODES:
            raise InputError(f"has more than {MOST_NODES:,} entries", file=file)
        node = above[-1]
        if isinstance(node, dict):
            yield above, path
            inside = [((*above, value), (*path, key)) for key, value in node.items() if isinstance(value, (dict, list))]
        else:
            values = enumerate(node) if isinstance(node, list) else ()
            inside = [((*above, value), (*path, at)) for at, value in values if isinstance(value, (dict, list))]
        left += reversed(inside)


def _files(found: Sequence[YamlDocument]) -> dict[str, tuple[str, int]]:
    """The files that ConfigMaps and configs of Compose hold, by their names, with their first lines."""
    held: dict[str, tuple[str, int]] = {}
    for document in found:
        data = document.data if isinstance(document.data, dict) else {}
        inside = [("data", name, text) for name, text in _mapping(data.get("data")).items()]
        inside += [
            ("configs", name, _mapping(each).get("content")) for name, each in _mapping(data.get("configs")).items()
        ]
        for section, name, text in inside:
            spot = document.spots.get((section, name, "content")) or document.spots.get((section, name))
            if isinstance(text, str):
                held[name] = (text, (spot.line if spot else 0) + 1)
        for service in _mapping(data.get("services")).values():
            for mount in _list(_mapping(service).get("configs")):
                source, target = (_mapping(mount).get(name) for name in ("source", "target"))
                if isinstance(source, str) and isinstance(target, str) and source in held:
                    held[target.rpartition("/")[2]] = held[source]
    return held


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _container(
    above: tuple[object, ...],
    path: Path,
    document: YamlDocument,
    file: str,
    facts: LaunchFacts,
    files: Mapping[str, tuple[str, int]],
) -> Container | None:
    node = _mapping(above[-1])
    stated = tuple(_words(node, path, document, file))
    if not stated and KEYED not in node:
        return None
    steps = tuple(step for step in path if isinstance(step, str))
    found = Container(_name(above, steps, document), steps, stated, str(node.get("image") or ""), files=dict(files))
    holders = [each for each in reversed(above) if isinstance(each, dict)]
    found.keyed = KEYED in node or "modelFormat" in node or node.get("modelCommand") == "vllmServe"
    found.variables = _variables(node)
    found.words += tuple(_parallel(holders, stated, _line(document, path)))
    found.lines["command"] = found.words[0].line if found.words else _line(document, path)
    _image(found, node, document, path)
    _replicas(found, above, path, document)
    _gpus(found, above, path, document, facts)
    nodes = next((each["size"] for each in holders if "workerTemplate" in each and "size" in each), 1)
    if found.gpus is not None and isinstance(nodes, int) and nodes > 1:  # of a LeaderWorkerSet
        found.gpus *= nodes
    _selected(found, holders, path, document, facts)
    uris = (
        value
        for each in holders
        for value in (*(each.get(name) for name in MODELS), _mapping(each.get("modelArtifacts")).get("uri"))
    )
    found.model = next((uri.removeprefix("hf://") for uri in uris if isinstance(uri, str)), None)
    return found


def _line(document: YamlDocument, path: Path) -> int | None:
    around = (document.spots.get(path[:end]) for end in range(len(path), -1, -1))
    return next((spot.line for spot in around if spot is not None), None)


def _words(node: Mapping[str, object], path: Path, document: YamlDocument, file: str) -> Iterator[Word]:
    """Yield the words of a container's command: of lists as they are, of text as a shell reads them."""
    for name in COMMANDS:
        value, at = node.get(name), (*path, name)
        if isinstance(value, str):
            line = _line(document, at) or 1
            yield from shell_words(value, file, line)
        elif isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value):
            for number, each in enumerate(value):
                spot = document.spots.get((*at, number))
                yield Word(
                    spot.text if spot and spot.text is not None else str(each),
                    spot.line if spot else _line(document, at),
                )
    for key, value in _mapping(node.get(KEYED)).items():
        yield from _keyed(key, value, _line(document, (*path, KEYED, key)))


def _keyed(key: str, value: object, line: int | None) -> Iterator[Word]:
    """Yield the flag that a chart writes for a key: `tensorParallelSize: 2`; more stand in `extraArgs`."""
    if key == EXTRA:
        yield from (Word(str(each), line) for each in _list(value))
        return
    flag = f"--{_CAPITAL.sub(lambda found: f'-{found[1]}', key).lower()}"
    if value is True:
        yield Word(flag, line)
    elif value not in (False, None, "") and not isinstance(value, (dict, list)) and key != "v1":
        yield from (Word(flag, line), Word(str(value), line))


def _parallel(holders: Sequence[Mapping[str, object]], stated: Sequence[Word], line: int | None) -> Iterator[Word]:
    """Yield the flags that a chart adds for `parallelism: {tensor: 4}`."""
    sizes = next((_mapping(each["parallelism"]) for each in holders if isinstance(each.get("parallelism"), dict)), {})
    given = {word.text.partition("=")[0] for word in stated}
    for name, flag in PARALLEL.items():
        if name in sizes and flag not in given:
            yield from (Word(flag, line), Word(str(sizes[name]), line))


def _name(above: tuple[object, ...], steps: tuple[str, ...], document: YamlDocument) -> str:
    """The name of what a container belongs to: of the manifest, the service, or the key that it stands under."""
    named = _mapping(_mapping(document.data).get("metadata")).get("name")
    if "services" in steps[:-1]:
        return steps[steps.index("services") + 1]
    if isinstance(named, str):
        return named
    own = _mapping(above[-1]).get("name")
    return str(own) if isinstance(own, str) else steps[0] if steps else "deployment"


def _variables(node: Mapping[str, object]) -> dict[str, str]:
    """Environment variables with plain values, as Kubernetes and Compose write them."""
    found: dict[str, str] = {}
    for name in ("env", "environment", "envs"):
        value = node.get(name)
        found |= {key: str(each) for key, each in _mapping(value).items() if not isinstance(each, (dict, list))}
        for each in _list(value):
            if isinstance(each, str) and "=" in each:
                found[each.partition("=")[0]] = each.partition("=")[2]
            elif isinstance(each, dict) and "value" in each:
                found[str(each.get("name"))] = str(each["value"])
    return found


def _image(found: Container, node: Mapping[str, object], document: YamlDocument, path: Path) -> None:
    image = node.get("image")
    if isinstance(image, dict):  # of Helm values
        found.image = ":".join(str(image[name]) for name in ("repository", "tag") if image.get(name))
    elif image is None and isinstance(node.get("repository"), str):
        found.image = ":".join(str(node[name]) for name in ("repository", "tag") if node.get(name))
    found.lines["image"] = _line(document, (*path, "image"))


def _replicas(found: Container, above: tuple[object, ...], path: Path, document: YamlDocument) -> None:
    """Note the replicas that the nearest of what surrounds a container states, or the one that its kind runs without."""
    for depth in range(len(above), 0, -1):
        holder = _mapping(above[depth - 1])
        for name in REPLICAS:
            value = holder.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                found.replicas, found.lines["replicas"] = value, _line(document, (*path[: depth - 1], name))
                return
    scaled = _mapping(_mapping(above[-1]).get("deploy")).get("replicas", _mapping(above[-1]).get("scale"))
    if isinstance(scaled, int):
        found.replicas, found.lines["replicas"] = scaled, _line(document, (*path, "deploy", "replicas"))
    elif _mapping(document.data).get("kind") in ONE or (
        path[:1] == ("services",) and "kind" not in _mapping(document.data)
    ):
        found.replicas = 1
        found.notes.append("one replica: nothing says more")


def _gpus(found: Container, above: tuple[object, ...], path: Path, document: YamlDocument, facts: LaunchFacts) -> None:
    """Note the GPUs that a container asks for: a resource, or devices of Compose."""
    known = (*facts.resources.values(), "gpu")
    for depth in range(len(above), 0, -1):
        holder = _mapping(above[depth - 1])
        for name in ("limits", "requests"):
            resources = _mapping(_mapping(holder.get("resources")).get(name))
            for key, value in resources.items():
                if key in known and str(value).isdecimal():
                    found.gpus, found.lines["gpus"] = (
                        int(str(value)),
                        _line(document, (*path[: depth - 1], "resources", name, key)),
                    )
                    return
        if str(holder.get("requestGPU", "")).isdecimal():
            found.gpus, found.lines["gpus"] = (
                int(str(holder["requestGPU"])),
                _line(document, (*path[: depth - 1], "requestGPU")),
            )
            return
    reserved = _mapping(_mapping(_mapping(_mapping(above[-1]).get("deploy")).get("resources")).get("reservations"))
    for device in _list(reserved.get("devices")):
        device = _mapping(device)
        count = (
            device.get("count")
            if isinstance(device.get("count"), int)
            else len(_list(device.get("device_ids"))) or None
        )
        if "gpu" in _list(device.get("capabilities")):
            found.gpus = count if isinstance(count, int) and not isinstance(count, bool) else None
            found.lines["gpus"] = _line(document, (*path, "deploy", "resources", "reservations", "devices"))


def _selected(
    found: Container, holders: Sequence[Mapping[str, object]], path: Path, document: YamlDocument, facts: LaunchFacts
) -> None:
    """Note the GPU types and instances that nodes are selected by, nearest first; and the type that a label states."""
    labels: list[str] = []
    instances: list[str] = []
    metadata = _mapping(_mapping(document.data).get("metadata"))
    stated = [_mapping(each.get(name)) for each in (*holders, metadata) for name in ("labels", "annotations")]
    labels += (str(each[GPU_LABEL]) for each in stated if GPU_LABEL in each)
    for holder in holders:
        inner = (holder, _mapping(holder.get("extraPodSpec")), _mapping(holder.get("extraConfig")))
        for each in inner:
            pairs = [*_mapping(each.get("nodeSelector")).items(), *_affinities(each)]
            labels += (str(value) for key, value in pairs if key in facts.every_label_key)
            instances += (str(value) for key, value in pairs if key in facts.instance_label_keys)
    found.labels, found.instances = tuple(dict.fromkeys(labels)), tuple(dict.fromkeys(instances))
    steps = (path[:end] for end in range(len(path), -1, -1))
    spots = (document.spots.get((*each, name)) for each in steps for name in ("nodeSelector", "affinity"))
    found.lines["gpu"] = next((spot.line for spot in spots if spot is not None), None)


def _affinities(holder: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the key and value of node affinities that allow one value."""
    required = _mapping(
        _mapping(_mapping(holder.get("affinity")).get("nodeAffinity")).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
    )
    for term in _list(required.get("nodeSelectorTerms")) + _list(holder.get("nodeSelectorTerms")):
        for rule in _list(_mapping(term).get("matchExpressions")):
            rule = _mapping(rule)
            values = _list(rule.get("values"))
            if rule.get("operator") == "In" and len(values) == 1:
                yield str(rule.get("key")), values[0]
