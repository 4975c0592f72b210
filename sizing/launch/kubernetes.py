"""A Deployment and a Service of Kubernetes for each pool, with probes, GPUs and the nodes that have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import yaml

from sizing.catalog.shelf import only
from sizing.launch.answered import Started
from sizing.launch.command import quoted
from sizing.launch.terms import PLACES
from sizing.specs.launch import LaunchFacts

GPU = "llmsize/gpu"  # names the GPU type where no label of a node is known to
SETTINGS = "/etc/llmsize"
LEADS = {"app.kubernetes.io/component": "leader"}  # the pod of a group that serves
LEADER_ADDRESS, WORKER_INDEX = "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX"  # which a LeaderWorkerSet sets in each pod


def manifests(parts: Sequence[Started]) -> str:
    """The manifests of all parts as documents of one file."""
    return documents(
        found
        for part in parts
        for found in (*settings_of(part), _deployment(part) if part.nodes == 1 else _group(part), _service(part))
    )


def documents(found: Iterable[dict[str, object]]) -> str:
    """Mappings as YAML documents: keys in their order, nothing folded, no anchors."""
    texts = (yaml.dump(each, Dumper=_Written, sort_keys=False, width=10_000) for each in found)
    return "---\n".join(texts).rstrip("\n")


class _Written(yaml.SafeDumper):
    """YAML that writes what stands twice twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def labels(part: Started) -> dict[str, str]:
    """The labels by which a part's pods are found."""
    return {"app.kubernetes.io/name": part.name, "app.kubernetes.io/part-of": part.launched.name}


def gpu_annotation(part: Started) -> dict[str, str]:
    """The GPU type, where no label of a node is known to name it."""
    return {} if part.gpu_type.id in only(LaunchFacts).node_labels else {GPU: part.gpu_type.id}


def metadata(part: Started) -> dict[str, object]:
    """Name, labels and annotations."""
    stated = gpu_annotation(part)
    return {"name": part.name, "labels": labels(part), **({"annotations": stated} if stated else {})}


def settings_of(part: Started) -> Iterator[dict[str, object]]:
    """Yield the ConfigMap of an engine's file of settings, where it has one."""
    if part.args.file is not None and part.dialect.engine.file is not None:
        data = {part.dialect.engine.file.name: part.args.file}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": part.name}, "data": data}


def _settings_volume(part: Started) -> Iterator[dict[str, object]]:
    if part.args.file is not None:
        yield {"name": "settings", "configMap": {"name": part.name}}


def pod(part: Started, container: str, *, first: bool = True) -> dict[str, object]:
    """The pod of a replica, or of one of its nodes: its container, the nodes that have its GPUs, shared memory."""
    facts, gpu_type = only(LaunchFacts), part.gpu_type
    volumes: list[dict[str, object]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": facts.shared_memory}},
        *_settings_volume(part),
    ]
    label = facts.node_labels.get(gpu_type.id)
    selector = {} if label is None else {"nodeSelector": {facts.label_keys[gpu_type.gpu.vendor]: label}}
    return {**selector, "containers": [_container(part, container, first)], "volumes": volumes}


def _container(part: Started, name: str, first: bool) -> dict[str, object]:
    facts, engine = only(LaunchFacts), part.dialect.engine
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    mounts += [{"name": "settings", "mountPath": SETTINGS} for _ in settings_of(part)]
    gpus = {facts.resources[part.gpu_type.gpu.vendor]: str(part.node_gpus)}
    health = {"httpGet": {"path": engine.health, "port": engine.port}}
    again = {**health, "periodSeconds": facts.probe_period_s, "failureThreshold": facts.probe_failures}
    served = {
        "ports": [{"name": "http", "containerPort": engine.port}],
        "startupProbe": {**health, "periodSeconds": facts.start_period_s, "failureThreshold": facts.start_failures},
        "readinessProbe": again,
        "livenessProbe": again,
    }
    return {
        "name": name,
        "image": part.image,
        **_started(part, first),
        "env": [*_environment(part), *({"name": key, "value": value} for key, value in part.args.env)],
        "resources": {"requests": gpus, "limits": gpus},
        **(served if first else {}),
        "volumeMounts": mounts,
    }


def _started(part: Started, first: bool) -> dict[str, object]:
    """The command of a container: of several, or one that reckons with its rank, as a shell's."""
    *before, last = part.commands(first=first)
    if before or any((place := PLACES.search(word)) and place[2] for word in last):
        names = (LEADER_ADDRESS, WORKER_INDEX)
        lines = [" ".join(quoted(word, *names) for word in words) for words in (*before, ("exec", *last))]
        return {"command": ["/bin/sh", "-c"], "args": [" && ".join(lines)]}
    begun = len(part.command)
    places = {"head": f"$({LEADER_ADDRESS})", "rank": f"$({WORKER_INDEX})"}
    words = [PLACES.sub(lambda found: places[found[1]], mounted(word, part)) for word in last]
    return {"command": words[:begun], "args": words[begun:]}


def mounted(word: str, part: Started) -> str:
    """A word of the command; the file of settings by its path in the container."""
    file = part.dialect.engine.file
    return f"{SETTINGS}/{word}" if file is not None and word == file.name else word


def _environment(part: Started) -> Iterator[dict[str, object]]:
    """Yield the token of the Hugging Face Hub, from a secret that may be missing, and what a connector needs."""
    secret = {"name": "huggingface", "key": "token", "optional": True}
    yield {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}
    if part.launched.role != "whole" and part.dialect.engine.name == "vllm":
        yield {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        yield {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(only(LaunchFacts).side_channel_port)}


def _deployment(part: Started) -> dict[str, object]:
    surge = {"maxSurge": 0, "maxUnavailable": 1}  # an update takes no GPUs beyond those of the answer
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(part),
        "spec": {
            "replicas": part.launched.replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": surge},
            "selector": {"matchLabels": labels(part)},
            "template": {"metadata": {"labels": labels(part)}, "spec": pod(part, part.dialect.engine.name)},
        },
    }


def _group(part: Started) -> dict[str, object]:
    """A LeaderWorkerSet: each replica is a group of pods, one a node, of which the first serves."""
    name = part.dialect.engine.name
    template = {
        "size": part.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": {"labels": {**labels(part), **LEADS}}, "spec": pod(part, name)},
        "workerTemplate": {"metadata": {"labels": labels(part)}, "spec": pod(part, name, first=False)},
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(part),
        "spec": {"replicas": part.launched.replicas, "leaderWorkerTemplate": template},
    }


def _service(part: Started) -> dict[str, object]:
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    serving = labels(part) if part.nodes == 1 else {**labels(part), **LEADS}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": part.name, "labels": labels(part)},
        "spec": {"selector": serving, "ports": ports},
    }
