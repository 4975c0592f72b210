"""Containers in manifests of any kind: Kubernetes, KServe, Helm values, llm-d, Dynamo, Docker Compose.

All kinds have the same reader. A container is a mapping that holds a command; the mappings around it state replicas and nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sizing.catalog.yaml import Path, Spot, YamlDocument, documents
from sizing.launch.flags import Word
from sizing.launch.shell import words as shell_words
from sizing.specs.errors import Fault, InputError, unknown
from sizing.specs.launch import LaunchFacts

COMMANDS = ("entrypoint", "command", "args")
KEYED, EXTRA = "vllmConfig", "extraArgs"  # keys of Helm values if the chart writes the flags
MODELS = (("storageUri",), ("modelURL",), ("modelUri",), ("hfModel",), ("modelArtifacts", "uri"), ("model", "uri"))
PARALLEL = {
    "tensor": "--tensor-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local",
    "expert": "--enable-expert-parallel",
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
}
OTHER_SIZES = ("dataRPCPort",)  # keys of KServe's `parallelism` that change no layout
# KServe for llm-d: the controller writes the commands of the container `main` and of the container of a prefill pool.
MAIN, MORE_FLAGS = "main", "VLLM_ADDITIONAL_ARGS"
REPLICAS = (("replicas",), ("replicaCount",), ("minReplicas",), ("deploy", "replicas"), ("scale",), ("parallelism",))
# Kinds that scale other manifests, with their keys for the fewest and the most replicas.
SCALERS = {
    "HorizontalPodAutoscaler": ("minReplicas", "maxReplicas"),
    "ScaledObject": ("minReplicaCount", "maxReplicaCount"),
}
LLM_SERVICE = "LLMInferenceService"
ONE = (
    "Pod",
    "Deployment",
    "StatefulSet",
    "Job",
    "ReplicaSet",
    LLM_SERVICE,
)  # kinds that run one replica by default
ONE_REPLICA = "one replica: nothing says more"
SERVICES = "services"  # in Compose
DEVICES = ("deploy", "resources", "reservations", "devices")
WORKERS = "workerSpec"  # in KServe, which starts a node for each stage of the pipeline
LEADER, WORKER = "leaderTemplate", "workerTemplate"  # in a LeaderWorkerSet
GROUP_SIZE = "LWS_GROUP_SIZE"  # a LeaderWorkerSet sets this variable in each of its pods
AFFINITY = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
TERMS = "nodeSelectorTerms"
SPECS = ("extraPodSpec", "extraConfig")  # keys of charts that go to the pod unchanged
MOST_NODES = 200_000  # nodes in a file, with aliases followed
GPU_LABEL = "llmsize/gpu"
_CAPITAL = re.compile(r"(?<!^)([A-Z])")
_TEMPLATED, _VARIABLE = "{{", "$"


class Card(NamedTuple):
    """A card that a Compose service names in `device_ids`, and its line."""

    id: str
    line: int | None


@dataclass(slots=True)
class Container:
    """What a manifest states about one container: its command and its surroundings. `lines` are the lines of its fields.

    `faults` are the faults of its numbers; a fault of `replicas` counts only if the user does not state them. `engine` is an
    engine with its version, from a comment. `slice_` is the part of a card that it requests. `doubt` says why it may not get
    its GPUs. `pods` is above one if a group of pods starts a replica. `cards` are those that a Compose service names, and
    `profiles` those with which Compose starts it; without one it always starts.
    """

    name: str
    path: tuple[str, ...]
    words: tuple[Word, ...] = ()
    image: str = ""
    engine: str | None = None
    keyed: bool = False
    model: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    replicas: int | None = None
    gpus: int | None = None
    slice_: str | None = None
    doubt: str | None = None
    pods: int = 1
    cards: tuple[Card, ...] = ()
    profiles: frozenset[str] = frozenset()
    labels: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    lines: dict[str, int | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


class _Node(NamedTuple):
    """A mapping in a manifest, with the values around it: the outermost first, the mapping itself last."""

    above: tuple[object, ...]
    path: Path
    document: YamlDocument
    file: str

    @property
    def own(self) -> Mapping[str, object]:
        return _mapping(self.above[-1])

    @property
    def holders(self) -> list[Mapping[str, object]]:
        """The mapping itself, then the mappings around it, nearest first."""
        return [each for each in reversed(self.above) if isinstance(each, dict)]

    def line(self, *steps: str | int) -> int | None:
        """The line of the value at `steps` below it, or of the nearest value around that."""
        return _line(self.document, (*self.path, *steps))

    def nearest(self, *paths: Sequence[str]) -> Iterator[tuple[object, int | None, str]]:
        """Yield the plain values at `paths` of the mapping and those around it, nearest first, with line and path in words."""
        for depth in range(len(self.above), 0, -1):
            for steps in paths:
                value = _at(self.above[depth - 1], *steps)
                if value is not None and not isinstance(value, (dict, list)):
                    yield value, _line(self.document, (*self.path[: depth - 1], *steps)), ".".join(steps)


def containers(text: str, file: str, facts: LaunchFacts) -> list[Container]:
    """The containers in a file that run a command. Raises InputError for text that is no YAML, or far too large."""
    try:
        found = documents(text, file)
    except InputError as error:
        if _TEMPLATED in text:
            raise InputError("is a template", file=file, allowed="what `helm template` makes of it") from None
        raise error from None
    found = [each for document in found for each in _items_of(document)]
    files, scaled = _files(found), _scaled(found)
    nodes = (node for document in found for node in (_services if _is_service(document) else _nodes)(document, file))
    return [each for node in nodes if (each := _container(node, facts, files, scaled)) is not None]


def _items_of(document: YamlDocument) -> Iterator[YamlDocument]:
    """Yield a document, or the manifests of a List, each as a document of its own."""
    items = _at(document.data, "items")
    if _at(document.data, "kind") != "List" or not isinstance(items, list):
        yield document
        return
    spots: list[dict[Path, Spot]] = [{} for _ in items]
    for path, spot in document.spots.items():
        if len(path) > 1 and path[0] == "items" and isinstance(path[1], int):
            spots[path[1]][path[2:]] = spot
    for item, places in zip(items, spots, strict=True):
        yield document._replace(data=item, spots=places)


def _is_service(document: YamlDocument) -> bool:
    return _at(document.data, "kind") == LLM_SERVICE


def _services(document: YamlDocument, file: str) -> Iterator[_Node]:
    """Yield the serving container of each pool of an LLMInferenceService, which may not state it."""
    spec = _mapping(_at(document.data, "spec"))
    around: tuple[object, ...] = (document.data, {"model": _at(spec, "model")})
    pools: list[tuple[tuple[object, ...], Path, dict[str, object]]] = [
        ((document.data,), ("spec",), spec),
        (around, ("spec", "prefill"), _mapping(_at(spec, "prefill"))),
    ]
    for above, path, pool in pools:
        listed = _list(_at(pool, "template", "containers"))
        at = next((at for at, each in enumerate(listed) if _at(each, "name") == MAIN), None)
        if at is not None:
            inside = (*path, "template", "containers", at)
            yield _Node((*above, pool, _at(pool, "template"), listed, listed[at]), inside, document, file)
        elif pool:
            yield _Node((*above, pool, {}), (*path, "template"), document, file)


def _nodes(document: YamlDocument, file: str) -> Iterator[_Node]:
    """Yield each mapping in a document. Raises InputError for far too many."""
    left: list[tuple[tuple[object, ...], Path]] = [((document.data,), ())]
    seen = 0
    while left:
        above, path = left.pop()
        seen += 1
        if seen > MOST_NODES:
            raise InputError(f"has more than {MOST_NODES:,} entries", file=file)
        if isinstance(above[-1], dict):
            yield _Node(above, path, document, file)
        left += reversed([
            ((*above, value), (*path, key)) for key, value in _items(above[-1]) if isinstance(value, (dict, list))
        ])  # fmt: skip


def _items(node: object) -> Iterator[tuple[str | int, object]]:
    yield from node.items() if isinstance(node, dict) else enumerate(_list(node))


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _at(node: object, *steps: str) -> object:
    for step in steps:
        node = _mapping(node).get(step)
    return node


def _line(document: YamlDocument, path: Path) -> int | None:
    around = (document.spots.get(path[:end]) for end in range(len(path), -1, -1))
    return next((spot.line for spot in around if spot is not None), None)


def _files(found: Sequence[YamlDocument]) -> dict[str, tuple[str, int]]:
    """The files in ConfigMaps and Compose configs by name, each with its first line."""
    held: dict[str, tuple[str, int]] = {}
    for document in found:
        for section, *steps in (("data",), ("configs", "content")):
            for name, each in _mapping(_at(document.data, section)).items():
                text, spot = _at(each, *steps), document.spots.get((section, name, *steps))
                if isinstance(text, str):
                    held[name] = (text, (spot.line if spot else 0) + 1)
        for service in _mapping(_at(document.data, SERVICES)).values():
            for mount in _list(_at(service, "configs")):
                source, target = (_at(mount, name) for name in ("source", "target"))
                if isinstance(source, str) and isinstance(target, str) and source in held:
                    held[target.rpartition("/")[2]] = held[source]
    return held


def _scaled(found: Sequence[YamlDocument]) -> dict[str, tuple[object, object, int | None]]:
    """The fewest and the most replicas of each scaled manifest by its name, with the line that states them."""
    scaled = {}
    for document in found:
        keys = SCALERS.get(str(_at(document.data, "kind")))
        name = _at(document.data, "spec", "scaleTargetRef", "name")
        if keys is not None and isinstance(name, str):
            fewest, most = (_at(document.data, "spec", key) for key in keys)
            scaled[name] = (1 if fewest is None else fewest, most, _line(document, ("spec", keys[0])))
    return scaled


def _container(
    node: _Node,
    facts: LaunchFacts,
    files: Mapping[str, tuple[str, int]],
    scaled: Mapping[str, tuple[object, object, int | None]],
) -> Container | None:
    own, holders = node.own, node.holders
    stated, service = tuple(_words(node)), _is_service(node.document)
    image = _image(own)
    if not stated and not service and KEYED not in own and not any(part in image for part in facts.closed_images):
        return None
    steps = tuple(step for step in node.path if isinstance(step, str))
    found = Container(_name(node, steps), steps, stated, image, files=dict(files))
    found.keyed = service or KEYED in own or "modelFormat" in own or own.get("modelCommand") == "vllmServe"
    if service and "prefill" not in steps and _at(node.document.data, "spec", "prefill"):
        found.name += "-decode"
    found.variables = _variables(own)
    found.words += tuple(shell_words(found.variables.get(MORE_FLAGS, ""), node.file, node.line("env") or 1))
    found.words += tuple(_parallel(holders, stated, node.line()))
    found.faults += _unknown_sizes(node) if service else ()
    found.lines |= {"command": found.words[0].line if found.words else node.line(), "image": node.line("image")}
    _replicas(found, node, scaled)
    _gpus(found, node, facts)
    claims = any(_at(each, "resources", "claims") or "resourceClaims" in each for each in holders)
    if found.gpus is None and "apiVersion" in _mapping(node.document.data) and not claims:
        found.doubt = "its containers reserve none"
    elif _list(_at(node.own, *DEVICES)) and (found.replicas or 1) > 1:
        found.doubt = f"Docker gives all {found.replicas} replicas of a service the same ones"
    sizes = (
        _at(each, *steps)
        for each in holders
        for steps in (("size",), (WORKERS, "pipelineParallelSize"))
        if {WORKER, WORKERS} & each.keys()
    )
    found.pods = next((size for size in sizes if isinstance(size, int) and size > 1), 1)
    found.variables |= {GROUP_SIZE: str(found.pods)} if found.pods > 1 else {}
    _selected(found, node, facts)
    named = [_at(each, *steps) for each in holders for steps in MODELS]
    found.model = next((uri.removeprefix("hf://") for uri in named if isinstance(uri, str)), None)
    return found


def _words(node: _Node) -> Iterator[Word]:
    """Yield the words of a container's command: the items of lists, and text split as in a shell."""
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
    for key, value in _mapping(node.own.get(KEYED)).items():
        yield from _keyed(key, value, node.line(KEYED, key))


def _keyed(key: str, value: object, line: int | None) -> Iterator[Word]:
    """Yield the flag that a chart writes for a key, such as `tensorParallelSize: 2`. `extraArgs` has further flags."""
    if key == EXTRA:
        yield from (Word(str(each), line) for each in _list(value))
        return
    flag = f"--{_CAPITAL.sub(lambda found: f'-{found[1]}', key).lower()}"
    if value is True:
        yield Word(flag, line)
    elif value not in (False, None, "") and not isinstance(value, (dict, list)) and key != "v1":
        yield from (Word(flag, line), Word(str(value), line))


def _parallel(holders: Sequence[Mapping[str, object]], stated: Sequence[Word], line: int | None) -> Iterator[Word]:
    """Yield the flags that a chart or a controller adds for `parallelism: {tensor: 4, expert: true}`."""
    stated_ = (_at(each, name) for each in holders for name in ("parallelism", WORKERS))
    sizes: dict[str, object] = next((each for each in stated_ if isinstance(each, dict)), {})
    given = {word.text.partition("=")[0] for word in stated}
    for name, flag in PARALLEL.items():
        if sizes.get(name) is True and flag not in given:
            yield Word(flag, line)
        elif sizes.get(name) not in (None, False) and flag not in given:
            yield from (Word(flag, line), Word(str(sizes[name]), line))


def _unknown_sizes(node: _Node) -> Iterator[Fault]:
    """Yield the fault of each key of `parallelism` that an LLMInferenceService does not have."""
    for depth in range(len(node.above), 0, -1):
        sizes = _at(node.above[depth - 1], "parallelism")
        if isinstance(sizes, dict):
            for key in sizes:
                if str(key) not in (*PARALLEL, *OTHER_SIZES):
                    line = _line(node.document, (*node.path[: depth - 1], "parallelism", key))
                    fault = unknown(str(key), "key of parallelism", PARALLEL, field=f"parallelism.{key}")
                    yield replace(fault, file=node.file, line=line)
            return


def _name(node: _Node, steps: tuple[str, ...]) -> str:
    """The name of the owner of a container: the manifest, the service, or the key above it."""
    if SERVICES in steps[:-1]:
        return steps[steps.index(SERVICES) + 1]
    named = (_at(node.document.data, "metadata", "name"), node.own.get("name"))
    return next((name for name in named if isinstance(name, str)), steps[0] if steps else "deployment")


def _variables(own: Mapping[str, object]) -> dict[str, str]:
    """The environment variables with plain values, in the forms of Kubernetes and Compose."""
    found: dict[str, str] = {}
    for name in ("env", "environment", "envs"):
        value = own.get(name)
        found |= {key: str(each) for key, each in _mapping(value).items() if not isinstance(each, (dict, list))}
        for each in _list(value):
            if isinstance(each, str) and "=" in each:
                found[each.partition("=")[0]] = each.partition("=")[2]
            elif isinstance(each, dict) and "value" in each:
                found[str(each.get("name"))] = str(each["value"])
    return found


def _image(own: Mapping[str, object]) -> str:
    """The image of a container; in Helm values, its repository and tag."""
    image = own.get("image")
    if isinstance(image, str):
        return image
    parts = _mapping(image) if image is not None else own
    return ":".join(str(parts[name]) for name in ("repository", "tag") if parts.get(name))


def _count(found: Container, what: str, value: object, place: tuple[str, int | None, str], *, text: bool) -> int | None:
    """A count in a manifest, also as `text`. None if a variable states it, or if it is invalid, which is recorded as a fault."""
    file, line, field_ = place
    if isinstance(value, str) and _VARIABLE in value:
        return None
    found.lines[what] = line
    count = int(value) if text and isinstance(value, str) and value.isdecimal() else value
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    written = repr(value) if isinstance(value, str) else str(value).lower()
    allowed = "--replicas with those that run" if what == "replicas" else None
    found.faults.append(Fault(f"must be a whole number above 0, not {written}", file, line, field_, allowed))
    return None


def _replicas(found: Container, node: _Node, scaled: Mapping[str, tuple[object, object, int | None]]) -> None:
    """Record the replicas from an autoscaler, or from the nearest mapping around a container; else one if the kind runs one."""
    kind, of_kubernetes = _at(node.document.data, "kind"), _at(node.document.data, "apiVersion") is not None
    named = _at(node.document.data, "metadata", "name")
    if isinstance(named, str) and named in scaled:
        fewest, most, line = scaled[named]
        found.replicas = _count(found, "replicas", fewest, (node.file, line, "minReplicas"), text=False)
        found.notes.append(f"the fewest replicas of the autoscaler, {fewest}, of at most {most}")
        return
    stated = next(node.nearest(*REPLICAS), None)
    if stated is not None:
        value, line, path = stated
        found.replicas = _count(found, "replicas", value, (node.file, line, path), text=not of_kubernetes)
    elif kind in ONE or (node.path[:1] == (SERVICES,) and kind is None):
        found.replicas = 1
        found.notes.append(ONE_REPLICA)


def _gpus(found: Container, node: _Node, facts: LaunchFacts) -> None:
    """Record the GPUs that a container requests: a resource, or Compose devices."""
    keys = (*facts.resources.values(), "gpu")
    paths = [("resources", name, key) for name in ("limits", "requests") for key in (*keys, *_slices(node, facts))]
    stated = next(node.nearest(*paths, ("requestGPU",)), None)
    if stated is not None:
        value, line, path = stated
        found.gpus = _count(found, "gpus", value, (node.file, line, path), text=True)
        _, part, sliced = path.partition(facts.slice_resource)
        found.slice_ = sliced if part else None
    found.profiles = frozenset(map(str, _list(node.own.get("profiles"))))
    for number, device in enumerate(_list(_at(node.own, *DEVICES))):
        if "gpu" in _list(_at(device, "capabilities")):
            named = _list(_at(device, "device_ids"))
            lines = (node.line(*DEVICES, number, "device_ids", at) for at in range(len(named)))
            found.cards += tuple(Card(str(each), line) for each, line in zip(named, lines, strict=True))
            value, place = _at(device, "count"), (node.file, node.line(*DEVICES), "devices.count")
            value = len(named) if named else None if value == "all" else value
            found.gpus = None if value is None else _count(found, "gpus", value, place, text=False)


def shared_cards(found: Sequence[Container], file: str) -> Iterator[Fault]:
    """Yield the fault of each card that a Compose service names twice, or that two services of one server name."""
    for at, service in enumerate(found):
        cards: dict[str, Card] = {}
        for card in service.cards:
            if _VARIABLE not in card.id:
                cards.setdefault(card.id, card)
        for card in service.cards:
            if cards.get(card.id, card) is not card:
                what = f"{service.name} names card {card.id} twice"
                yield Fault(what, file, card.line, "device_ids", "each card once")
        for other in found[:at]:
            named = {card.id for card in other.cards}
            apart = service.profiles and other.profiles and not service.profiles & other.profiles
            for card in () if apart else cards.values():
                if card.id in named:
                    what = f"{service.name} names card {card.id}, which {other.name} names too"
                    yield Fault(what, file, card.line, "device_ids", "cards of its own for each service of a server")


def _slices(node: _Node, facts: LaunchFacts) -> list[str]:
    """The resources of a container that are GPU slices."""
    asked = (key for name in ("limits", "requests") for key in _mapping(_at(node.own, "resources", name)))
    return [key for key in asked if str(key).startswith(facts.slice_resource)]


def _selected(found: Container, node: _Node, facts: LaunchFacts) -> None:
    """Record the GPU types and instances in node selectors, nearest first, and the type in a label."""
    holders, metadata = node.holders, _at(node.document.data, "metadata")
    stated = [_mapping(_at(each, name)) for each in (*holders, metadata) for name in ("labels", "annotations")]
    labels = [str(each[GPU_LABEL]) for each in stated if GPU_LABEL in each]
    around = [each for holder in holders for each in (holder, *(_mapping(holder.get(name)) for name in SPECS))]
    pairs = [pair for each in around for pair in (*_mapping(each.get("nodeSelector")).items(), *_affinities(each))]
    labels += (str(value) for key, value in pairs if key in facts.every_label_key)
    instances = (str(value) for key, value in pairs if key in facts.instance_label_keys)
    found.labels, found.instances = tuple(dict.fromkeys(labels)), tuple(dict.fromkeys(instances))
    steps = (node.path[:end] for end in range(len(node.path), -1, -1))
    spots = (node.document.spots.get((*each, name)) for each in steps for name in ("nodeSelector", "affinity"))
    found.lines["gpu"] = next((spot.line for spot in spots if spot is not None), None)


def _affinities(holder: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the key and value of node affinities that allow a single value."""
    for term in (*_list(_at(holder, *AFFINITY, TERMS)), *_list(holder.get(TERMS))):
        for rule in map(_mapping, _list(_at(term, "matchExpressions"))):
            values = _list(rule.get("values"))
            if rule.get("operator") == "In" and len(values) == 1:
                yield str(rule.get("key")), values[0]
