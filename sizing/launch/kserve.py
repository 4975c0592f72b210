"""An InferenceService of KServe for each pool, with a fixed number of replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sizing.launch.answered import Started
from sizing.launch.kubernetes import documents, gpu_annotation, metadata, pod, settings_of

CONTAINER = "kserve-container"  # the name that KServe gives the model server
RAW = "serving.kserve.io/deploymentMode"


def manifests(parts: Sequence[Started]) -> str:
    """The manifests of all parts as documents of one file."""
    return documents(_both(parts))


def _both(parts: Sequence[Started]) -> Iterator[dict[str, object]]:
    for part in parts:
        yield from settings_of(part)
        about = {**metadata(part), "annotations": {**gpu_annotation(part), RAW: "RawDeployment"}}
        scale = {"minReplicas": part.launched.replicas, "maxReplicas": part.launched.replicas}
        yield {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": about,
            "spec": {"predictor": {**scale, **pod(part, CONTAINER)}},
        }
