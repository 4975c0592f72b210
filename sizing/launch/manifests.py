"""Containers in manifests of any kind: Kubernetes, KServe, Helm values, llm-d, Dynamo, Docker Compose.

All kinds have the same reader. A container is a mapping that holds a command; the mappings around it state replicas and nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from sizing.catalog.shelf import only
from sizing.catalog.yaml import YamlDocument, documents
from sizing.launch.commands import (
    entered_twice,
    not_written,
    of_compose,
    of_shell,
    parallel,
    refused,
    switched_off,
    unknown_sizes,
    words_of,
)
from sizing.launch.container import HELD, Card, Container
from sizing.launch.documents import (
    MERGE,
    SERVICES,
    ManifestNode,
    OtherDocuments,
    Scaler,
    as_list,
    as_mapping,
    beside,
    check_whole,
    environment,
    environment_files,
    files_of,
    held,
    line_of,
    manifests_of,
    map_named,
    merged,
    missing,
    mounted,
    nodes,
    of_namespace,
    scalers_of_chart,
    value_at,
)
from sizing.launch.script_text import ABOUT, names_in, with_variables
from sizing.launch.script_text import words as shell_words
from sizing.launch.terms import Word
from sizing.specs.errors import Fault, FieldPath, InputError, raise_any
from sizing.specs.launch import Charts, LaunchFacts

# KServe for llm-d: the controller writes the commands of the container `main` and of the container of a prefill pool.
MAIN, MORE_FLAGS = "main", "VLLM_ADDITIONAL_ARGS"
LLM_SERVICE = "LLMInferenceService"
WHICH_RUN = "use --replicas with those that run"
OF_COMPOSE = "{} as .env or the default says: a variable of the shell that runs docker compose takes precedence"
ONE_REPLICA = "one replica: nothing says more"
EXTENSION = "x-"  # prefix of the keys of Compose that hold parts of services
DEVICES = ("deploy", "resources", "reservations", "devices")
EVERY = (None, "all", -1)  # counts of devices, and names, that stand for all of a server
LEADER, WORKER = "leaderTemplate", "workerTemplate"  # in a LeaderWorkerSet
CONTAINERS, BEFORE, ALWAYS = "containers", "initContainers", "Always"  # of a pod
HELM_OF_ARGO = ("spec", "source", "helm")
VALUES_OF_ARGO = ("values", "valuesObject", "parameters", "fileParameters")  # later ones take precedence
GROUP_SIZE = "LWS_GROUP_SIZE"  # a LeaderWorkerSet sets this variable in each of its pods
AFFINITY = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
TERMS = "nodeSelectorTerms"
SPECS = ("extraPodSpec", "extraConfig")  # keys of charts that go to the pod unchanged
OF_SLICE = "-MIG-"  # in a product label of nodes whose GPUs are all slices
GPU_LABEL, DRAFTS_LABEL = "llmsize/gpu", "llmsize/speculative"
_TEMPLATED, _VARIABLE = "{{", "$"
_REPLACED = re.compile(r"\$\(([A-Za-z_]\w*)\)")  # by Kubernetes


def containers(text: str, file: str, facts: LaunchFacts) -> list[Container]:
    """The containers in a file that run a command. Raises InputError for text that is no YAML, or far too large."""
    try:
        found, taken = documents(text, file), tuple[str, ...]()
        if _VARIABLE in text and any(_is_composed(each) for each in found):
            taken = tuple(dict.fromkeys(name for name in names_in(text) if not name.isdecimal()))
            found = documents(with_variables(text, environment(Path(file).parent)), file)
    except InputError as error:
        if _TEMPLATED in text:
            raise InputError("is a template", file=file, allowed="what `helm template` makes of it") from None
        raise error from None
    found = [each for document in found for each in manifests_of(merged(document) if MERGE in text else document)]
    _check_one_source(found, file)
    found += [inside for each in found for steps in facts.charts.texts for inside in held(each, file, *steps)]
    check_whole(found, file)
    others = beside(found, facts.charts)
    around = (node for document in found for node in (_services if _is_service(document) else nodes)(document, file))
    stated = (node for node in around if not (node.path and str(node.path[0]).startswith(EXTENSION)) and _stays(node))
    every = [(each, switched_off(node, facts.charts)) for node in stated if (each := _container(node, facts, others))]
    made, off = [each for each, key in every if key is None], {key: each for each, key in every if key is not None}
    if off and not made:
        raise InputError(
            "is false: nothing is started", file=file, line=next(iter(off)).line, field=next(iter(off)).text
        )
    for each in made:
        each.notes += [OF_COMPOSE.format(", ".join(taken))] if taken else []
        each.notes += [f"{key.text} is false (line {key.line}): what it switches off does not count" for key in off]
    return made


def _stays(node: ManifestNode) -> bool:
    """Whether a container runs as long as its pod: not one that prepares it."""
    return BEFORE not in node.path or node.own.get("restartPolicy") == ALWAYS


def _is_composed(document: YamlDocument) -> bool:
    """Whether a document is a file of Docker Compose."""
    return bool(as_mapping(value_at(document.data, SERVICES))) and value_at(document.data, "kind") is None


def _check_one_source(documents: Sequence[YamlDocument], file: str) -> None:
    """Raise InputError for values of Argo CD that stand beside others over which they take precedence."""
    faults = list[Fault]()
    for document in documents:
        given = [key for key in VALUES_OF_ARGO if value_at(document.data, *HELM_OF_ARGO, key)]
        for key in given[1:]:
            what = f"takes precedence over `{given[0]}`, and is not read"
            line = line_of(document, (*HELM_OF_ARGO, key))
            faults.append(Fault(what, file, line, key, f"all values in `{given[0]}`"))
    raise_any(faults)


def _is_service(document: YamlDocument) -> bool:
    return value_at(document.data, "kind") == LLM_SERVICE


def _services(document: YamlDocument, file: str) -> Iterator[ManifestNode]:
    """Yield the serving container of each pool of an LLMInferenceService, which may not state it."""
    spec = as_mapping(value_at(document.data, "spec"))
    around: tuple[object, ...] = (document.data, {"model": value_at(spec, "model")})
    pools: list[tuple[tuple[object, ...], FieldPath, dict[str, object]]] = [
        ((document.data,), ("spec",), spec),
        (around, ("spec", "prefill"), as_mapping(value_at(spec, "prefill"))),
    ]
    for above, path, pool in pools:
        listed = as_list(value_at(pool, "template", "containers"))
        at = next((at for at, each in enumerate(listed) if value_at(each, "name") == MAIN), None)
        if at is not None:
            inside = (*path, "template", "containers", at)
            yield ManifestNode((*above, pool, value_at(pool, "template"), listed, listed[at]), inside, document, file)
        elif pool:
            yield ManifestNode((*above, pool, {}), (*path, "template"), document, file)


def _container(node: ManifestNode, facts: LaunchFacts, documents: OtherDocuments) -> Container | None:
    own, holders, charts = node.own, node.holders, facts.charts
    stated, service = tuple(words_of(node, charts)), _is_service(node.document)
    image = _image(own)
    keyed = service or any(name in own for name in charts.keyed)
    if (
        not stated
        and not keyed
        and own.get("modelCommand") != "vllmServe"
        and not any(part in image for part in facts.closed_images)
    ):
        return None
    steps = tuple(step for step in node.path if isinstance(step, str))
    found = Container(_name(node, steps, charts), steps, stated, image, file=node.file)
    found.files = files_of(node, documents) | (mounted(node, stated) if node.of_compose else {})
    found.entered = ("entrypoint" if node.of_compose else "command") not in own
    if found.entered and not keyed:
        found.faults += entered_twice(stated, image, node.file, facts)
    found.keyed = keyed or "modelFormat" in own or own.get("modelCommand") == "vllmServe"
    if service and "prefill" not in steps and value_at(node.document.data, "spec", "prefill"):
        found.name += "-decode"
    found.variables = _variables(node, documents)
    found.words += tuple(shell_words(found.variables.get(MORE_FLAGS, ""), node.file, node.line("env") or 1))
    found.words += tuple(parallel(holders, stated, node.line(), charts))
    found.faults += (*refused(node, charts), *(unknown_sizes(node, charts) if service else ()))
    found.notes += (*not_written(node, charts), *(note for marked, note in charts.slower.items() if marked in own))
    if node.of_compose:
        found.faults += (*of_compose(node, found.variables), *missing(node))
    else:
        found.faults += of_shell(node, found.variables)
    found.lines |= {"command": found.words[0].line if found.words else node.line(), "image": node.line("image")}
    _replicas(found, node, documents.scalers, charts)
    _gpus(found, node, facts)
    _group(found, node, charts)
    _selected(found, node, facts)
    named = [value_at(each, *steps) for each in holders for steps in charts.models]
    found.model = next((uri.removeprefix("hf://") for uri in named if isinstance(uri, str)), None)
    return found


def _group(container: Container, node: ManifestNode, charts: Charts) -> None:
    """Record the pods that start a replica together."""
    sizes = (
        value_at(each, *steps)
        for each in node.holders
        for steps in (("size",), (charts.workers, "pipelineParallelSize"))
        if {WORKER, charts.workers} & each.keys()
    )
    container.pods = next((size for size in sizes if isinstance(size, int) and size > 1), 1)
    container.variables |= {GROUP_SIZE: str(container.pods)} if container.pods > 1 else {}


def _name(node: ManifestNode, steps: tuple[str, ...], charts: Charts) -> str:
    """The name of the owner of a container: the manifest, the service, or the key above it."""
    if SERVICES in steps[:-1]:
        return steps[steps.index(SERVICES) + 1]
    own = (value_at(node.own, *path) for path in charts.names)
    named = (*own, value_at(node.document.data, "metadata", "name"), node.own.get("name"))
    return next((name for name in named if isinstance(name, str)), steps[0] if steps else "deployment")


def _variables(node: ManifestNode, documents: OtherDocuments) -> dict[str, str]:
    """The environment variables with plain values, in the forms of Kubernetes and Compose; also those of ConfigMaps in the same file."""
    found: dict[str, str] = {}
    for each in as_list(node.own.get("envFrom")):
        held, prefix = (
            map_named(value_at(each, "configMapRef", "name"), node, documents),
            value_at(each, "prefix") or "",
        )
        found |= {f"{prefix}{name}": value for name, value in (held.values.items() if held else ())}
    for name, _ in environment_files(node):
        found |= environment(Path(node.file).parent, name)
    for name in ("env", "environment", "envs"):
        found |= _pairs(node.own.get(name))
        for each in map(as_mapping, as_list(node.own.get(name))):
            if "value" in each:
                text = str(value_at(each, "value"))
                found[str(value_at(each, "name"))] = _replaced(text, found)
            named, key = (value_at(each, "valueFrom", "configMapKeyRef", part) for part in ("name", "key"))
            held = map_named(named, node, documents)
            if held is not None and str(key) in held.values:
                found[str(value_at(each, "name"))] = held.values[str(key)]
    return found


def _replaced(text: str, variables: Mapping[str, str]) -> str:
    """A value with the variables before it, as Kubernetes replaces them; itself if that is far too long."""
    limits = only(LaunchFacts).script_limits
    full = _REPLACED.sub(lambda part: variables.get(part[1], part[0]), text) if len(text) <= limits.short else text
    return full if len(full) <= limits.held else text


def _pairs(value: object) -> dict[str, str]:
    """Names with plain values, of a mapping or of a list of `NAME=VALUE`."""
    found = {str(key): str(each) for key, each in as_mapping(value).items() if not isinstance(each, (dict, list))}
    texts = (each.partition("=") for each in as_list(value) if isinstance(each, str) and "=" in each)
    return found | {name: text for name, _, text in texts}


def _image(own: Mapping[str, object]) -> str:
    """The image of a container; in Helm values, its repository and tag."""
    image = own.get("image")
    if isinstance(image, str):
        return image
    parts = as_mapping(image) if image is not None else own
    return ":".join(str(parts[name]) for name in ("repository", "tag") if parts.get(name))


def _count(
    container: Container, what: str, value: object, place: tuple[str, int | None, str], *, text: bool
) -> int | None:
    """A count in a manifest, also as `text`. None if a variable states it, or if it is invalid, which is recorded as a fault."""
    file, line, field_ = place
    if isinstance(value, str) and _VARIABLE in value:
        return None
    container.lines[what] = line
    count = int(value) if text and isinstance(value, str) and value.isdecimal() else value
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    written = repr(value) if isinstance(value, str) else str(value).lower()
    remedy = WHICH_RUN if what == "replicas" else None
    container.faults.append(Fault(f"must be a whole number above 0, not {written}", file, line, field_, remedy=remedy))
    return None


def _replicas(container: Container, node: ManifestNode, scalers: Sequence[Scaler], charts: Charts) -> None:
    """Record the replicas from an autoscaler, or from the nearest mapping around a container; else one if the kind runs one."""
    kind, of_kubernetes = value_at(node.document.data, "kind"), value_at(node.document.data, "apiVersion") is not None
    named = value_at(node.document.data, "metadata", "name")
    own = of_namespace((each for each in scalers if each.name == named and each.kind in (None, kind)), node)
    own = own or list(scalers_of_chart(node, charts))
    stated = next(node.nearest(*charts.replicas, *charts.fewest), None)
    if len(own) > 1:
        what = f"is scaled by {len(own)} autoscalers, and no namespace says by which"
        container.faults.append(Fault(what, node.file, own[0].line, "replicas", remedy=WHICH_RUN))
    elif own:
        place = (node.file, own[0].line, own[0].field)
        container.replicas = _count(container, "replicas", own[0].fewest, place, text=False)
        container.notes.append(f"the fewest replicas of the autoscaler, {own[0].fewest}, of at most {own[0].most}")
    elif stated is not None:
        value, line, path = stated
        fewest = path in map(".".join, charts.fewest)
        container.replicas = _count(
            container, "replicas", value, (node.file, line, path), text=fewest or not of_kubernetes
        )
        container.notes += [f"the fewest replicas of the autoscaler, {value}"] if fewest else []
    elif kind in charts.one or node.of_compose:
        container.replicas = 1
        container.notes.append(ONE_REPLICA)


def _gpus(container: Container, node: ManifestNode, facts: LaunchFacts) -> None:
    """Record the GPUs that a container requests: a resource, or Compose devices."""
    keys = (*facts.resources.values(), "gpu")
    paths = [("resources", name, key) for name in ("limits", "requests") for key in (*keys, *_slices(node, facts))]
    stated = next(node.nearest(*paths, ("requestGPU",)), None)
    if stated is not None:
        value, line, path = stated
        container.gpus = _count(container, "gpus", value, (node.file, line, path), text=True)
        _, part, sliced = path.partition(facts.slice_resource)
        container.slice_ = sliced if part else None
        container.faults += _unlimited(node, path, facts)
    bundled = (value_at(each, "GPU") for each in as_list(value_at(node.own, *facts.charts.bundles)))
    for each in filter(None, bundled):
        place = (node.file, node.line(*facts.charts.bundles), ".".join(facts.charts.bundles))
        container.gpus = (container.gpus or 0) + (_count(container, "gpus", each, place, text=True) or 0)
    claims = any(value_at(each, "resources", "claims") or "resourceClaims" in each for each in node.holders)
    if node.of_compose:
        _devices(container, node, facts)
    elif container.gpus is None and "apiVersion" in as_mapping(node.document.data) and not claims:
        container.doubt = "its containers reserve none"
    if node.path[-2:-1] in ((CONTAINERS,), (BEFORE,)):
        container.pod = line_of(node.document, node.path[:-2])
    container.at, beside = node.path, as_list(node.above[-2] if node.path[-2:-1] == (CONTAINERS,) else None)
    if len(beside) > facts.pod_entries:
        raise InputError(f"has a pod of more than {facts.pod_entries} containers", file=node.file, line=container.pod)
    container.gpus_beside = {
        (*node.path[:-1], at): gpus for at, each in enumerate(beside) if (gpus := _limit(each, keys))
    }
    before = as_list(value_at(node.above[-3], BEFORE) if beside and len(node.above) > 2 else None)
    for at, each in enumerate(before):
        gpus = _limit(each, keys)
        if gpus and value_at(each, "restartPolicy") == ALWAYS:  # it runs as long as the pod
            container.gpus_beside[*node.path[:-2], BEFORE, at] = gpus
        else:
            container.gpus_before = max(container.gpus_before, gpus)


def _unlimited(node: ManifestNode, path: str, facts: LaunchFacts) -> Iterator[Fault]:
    """Yield the fault of GPUs that a pod requests without the same limit, which Kubernetes refuses."""
    resource = path.partition("resources.")[2].partition(".")[2]
    if resource not in facts.resources.values() and not resource.startswith(facts.slice_resource):
        return
    around = ([value_at(each, "resources", name, resource) for name in ("requests", "limits")] for each in node.holders)
    asked, limit = next(each for each in around if any(each))
    if asked is not None and str(asked) != str(limit):
        limited = "no limit" if limit is None else f"a limit of {limit}"
        what = f"requests {asked} with {limited}: Kubernetes refuses GPUs without an equal limit"
        yield node.fault(what, "resources", field=resource, allowed=f"limits: {{{resource}: {asked}}}")


def _limit(container: object, keys: Sequence[str]) -> int:
    """The GPUs that a container of a pod reserves; 0 for none, or for a text that is no number."""
    stated = (value_at(container, "resources", name, key) for name in ("limits", "requests") for key in keys)
    return next((int(text) for value in stated if (text := str(value)).isdecimal()), 0)


def _devices(container: Container, node: ManifestNode, facts: LaunchFacts) -> None:
    """Record the GPUs that a Compose service asks of its server: by name, by number, or all of them."""
    container.profiles = frozenset(map(str, as_list(value_at(node.own, "profiles"))))
    plain = [str(each) for each in as_list(value_at(node.own, "devices"))]
    named = [each for each in plain if each.startswith(tuple(facts.device_names))]
    container.cards = tuple(Card(each.partition("=")[2], node.line("devices")) for each in named)
    every = value_at(node.own, "gpus") == "all"
    container.whole = every or value_at(node.own, "runtime") == facts.gpu_runtime
    container.whole |= any(each.partition(":")[0] in files for files in facts.device_files.values() for each in plain)
    container.requested = every or bool(named)
    for steps in (DEVICES, ("gpus",)):
        for number, device in enumerate(as_list(value_at(node.own, *steps))):
            if "gpu" in as_list(value_at(device, "capabilities")) or steps != DEVICES:
                _requested(container, device, (*steps, number), node)
    if container.cards:
        every = any(card.id in EVERY for card in container.cards)
        container.whole, container.cards = every, () if every else container.cards
        container.gpus = None if every else len(container.cards)
    if not (container.whole or container.gpus or container.variables.keys() & set(facts.visible_devices)):
        container.doubt = "its service asks for none"


def _requested(container: Container, device: object, steps: FieldPath, node: ManifestNode) -> None:
    """Record the GPUs of one request of a Compose service."""
    container.requested = True
    ids, count = as_list(value_at(device, "device_ids")), value_at(device, "count")
    lines = (node.line(*steps, "device_ids", at) for at in range(len(ids)))
    container.cards += tuple(Card(str(each).rpartition("=")[2], line) for each, line in zip(ids, lines, strict=True))
    if not ids and count in EVERY:
        container.whole = True
    elif not ids:
        container.gpus = _count(container, "gpus", count, (node.file, node.line(*steps), "devices.count"), text=True)


def _slices(node: ManifestNode, facts: LaunchFacts) -> list[str]:
    """The resources of a container that are GPU slices."""
    asked = (key for name in ("limits", "requests") for key in as_mapping(value_at(node.own, "resources", name)))
    return [key for key in asked if str(key).startswith(facts.slice_resource)]


def _selected(container: Container, node: ManifestNode, facts: LaunchFacts) -> None:
    """Record the GPU types and instances in node selectors, nearest first, and the type and the acceptance of drafts in labels."""
    holders, metadata = node.holders, value_at(node.document.data, "metadata")
    stated = [_pairs(value_at(each, name)) for each in (*holders, metadata) for name in ("labels", "annotations")]
    labels = [each[GPU_LABEL] for each in stated if GPU_LABEL in each]
    container.holds = {name: each[key] for name in HELD for each in stated if (key := f"{ABOUT}{name}") in each}
    drafts = next((each[DRAFTS_LABEL] for each in stated if DRAFTS_LABEL in each), None)
    container.drafts = None if drafts is None else Word(drafts, container.lines.get("command"))
    around = [each for holder in holders for each in (holder, *(as_mapping(holder.get(name)) for name in SPECS))]
    pairs = [pair for each in around for pair in (*as_mapping(each.get("nodeSelector")).items(), *_affinities(each))]
    for each, (name, (key, values)) in product(around, facts.charts.label_lists.items()):
        listed = as_list(value_at(each, name, values))
        pairs += [(str(value_at(each, name, key)), listed[0])] if len(listed) == 1 else []
    labels += (str(value) for key, value in pairs if key in facts.every_label_key)
    typed = (node.own.get(key) for marked, key in facts.charts.gpu_types.items() if marked in node.own)
    labels += [str(each) for each in typed if each]
    instances = (
        str(value).removeprefix(facts.instance_prefix) for key, value in pairs if key in facts.instance_label_keys
    )
    sliced = [str(value) for key, value in pairs if key in facts.slice_label_keys]
    sliced += [part for label in labels if (part := label.partition(OF_SLICE)[2])]
    container.slice_ = next(iter(sliced), container.slice_)
    labels = [label.partition(OF_SLICE)[0] for label in labels]
    container.labels, container.instances = tuple(dict.fromkeys(labels)), tuple(dict.fromkeys(instances))
    limits = as_mapping(value_at(node.own, "resources", "limits"))
    given = [
        (str(key), str(each))
        for key, each in (*pairs, *limits.items(), *(pair for each in stated for pair in each.items()))
    ]
    container.faults += _shared(given, node, facts)
    steps = (node.path[:end] for end in range(len(node.path), -1, -1))
    spots = (node.document.spots.get((*each, name)) for each in steps for name in ("nodeSelector", "affinity"))
    container.lines["gpu"] = next((spot.line for spot in spots if spot is not None), None)


def _shared(given: Sequence[tuple[str, str]], node: ManifestNode, facts: LaunchFacts) -> Iterator[Fault]:
    """Yield the fault of each resource, label or annotation that gives a pod a share of a card."""
    for key, value in dict.fromkeys(given):
        shares = key in facts.shared_keys and value.lower() not in facts.unshared
        ends = key.endswith(facts.shared_ends) or (key in facts.every_label_key and value.endswith(facts.shared_ends))
        if shares or ends or key in facts.shared_resources:
            what = f"is {value}, which gives a share of a card that others use too: what they leave of it is not known"
            yield node.fault(what, "resources", field=key)


def _affinities(holder: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the key and value of node affinities that allow a single value."""
    for term in (*as_list(value_at(holder, *AFFINITY, TERMS)), *as_list(holder.get(TERMS))):
        for rule in map(as_mapping, as_list(value_at(term, "matchExpressions"))):
            values = as_list(rule.get("values"))
            if rule.get("operator") == "In" and len(values) == 1:
                yield str(rule.get("key")), values[0]
