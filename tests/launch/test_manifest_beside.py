"""Files, variables and autoscalers of other documents count for the containers that they are of."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import IMAGE, KINDS, MODEL, faults, only, written

from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts
from sizing.specs.errors import InputError

ON = UserFacts(gpu="h100-sxm", replicas=1)
POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: NAME}}
spec:
  volumes: [{{name: c, VOLUME}}]
  containers:
  - image: {IMAGE}
    args: [--model, {MODEL}, --config, /etc/vllm/c.yaml]
    volumeMounts: [{{name: c, mountPath: /etc/vllm}}]
"""


def pod(name: str, volume: str) -> str:
    return POD.replace("NAME", name).replace("VOLUME", volume)


def held(name: str, tp: int, key: str = "c.yaml", metadata: str = "") -> str:
    return f'---\nkind: ConfigMap\nmetadata: {{name: {name}{metadata}}}\ndata: {{{key}: "tensor-parallel-size: {tp}", TP: "{tp}"}}\n'


@pytest.mark.parametrize(
    "volume",
    [
        "configMap: {name: cfg}",
        "projected: {sources: [{configMap: {name: cfg}}]}",
        "configMap: {name: own, items: [{key: x.yaml, path: c.yaml}]}",
    ],
)
def test_a_file_is_that_of_the_config_map_that_a_volume_names(volume: str, tmp_path: Path) -> None:
    text = pod("one", volume) + held("cfg", 2) + held("own", 2, "x.yaml") + held("another", 1)
    assert only(existing(written(tmp_path, text), ON)).launched.serving.tp == 2


def test_two_pools_have_files_of_one_name(tmp_path: Path) -> None:
    pools = "---\n".join(pod(name, f"configMap: {{name: {name}}}") for name in ("prefill", "decode"))
    found = existing(written(tmp_path, pools + held("prefill", 2) + held("decode", 4)), ON)
    assert {each.launched.role: each.launched.serving.tp for each in found} == {"prefill": 2, "decode": 4}
    services = "".join(
        f"  {name}:\n    image: {IMAGE}\n    command: --model {MODEL} --config /c.yaml\n"
        f"    configs: [{{source: {name}, target: /c.yaml}}]\n    gpus: [{{device_ids: {cards}}}]\n"
        for name, cards in (("prefill", [0, 1]), ("decode", [2, 3, 4, 5]))
    )
    configs = 'configs: {prefill: {content: "tensor-parallel-size: 2"}, decode: {content: "tensor-parallel-size: 4"}}\n'
    composed = existing(written(tmp_path, f"services:\n{services}{configs}", "compose.yaml"), ON)
    assert [each.launched.serving.tp for each in composed] == [2, 4]


@pytest.mark.parametrize("volume", ["emptyDir: {}", "configMap: {name: elsewhere}"])
def test_a_file_that_nothing_tells_apart_is_a_fault(volume: str, tmp_path: Path) -> None:
    (told,) = faults(written(tmp_path, pod("one", volume) + held("cfg", 2) + held("another", 1)), ON)
    assert "--config: '/etc/vllm/c.yaml' is not here" in told and "that the container mounts" in told


ENV = f"""\
kind: Pod
metadata: {{name: chat}}
spec:
  containers:
  - image: {IMAGE}
    args: [--model, {MODEL}, -tp, WORD]
    env: ENTRIES
"""


def env(word: str, entries: str) -> str:
    return ENV.replace("WORD", word).replace("ENTRIES", entries)


OF_MAP = "[{name: TP, valueFrom: {configMapKeyRef: {name: cfg, key: TP}}}]"


def test_a_config_map_is_that_of_the_namespace(tmp_path: Path) -> None:
    prod = held("cfg", 8, metadata=", namespace: prod")
    own = env("$(TP)", OF_MAP)
    for maps in (prod + held("cfg", 2), held("cfg", 2) + prod):
        assert only(existing(written(tmp_path, own + maps), ON)).launched.serving.tp == 2
        there = own.replace("name: chat", "name: chat, namespace: prod")
        assert only(existing(written(tmp_path, there + maps), ON)).launched.serving.tp == 8
    assert only(existing(written(tmp_path, own + prod), ON)).launched.serving.tp == 8
    (told,) = faults(written(tmp_path, own + prod + held("cfg", 2, metadata=", namespace: test")), ON)
    assert "-tp: is set by $(TP), which the file does not state" in told


def test_variables_of_a_list_are_those_that_kubernetes_replaces(tmp_path: Path) -> None:
    two = '[{name: N, value: "2"}, {name: TP, value: $(N)}]'
    assert only(existing(written(tmp_path, env("$(TP)", two)), ON)).launched.serving.tp == 2
    for word in ("$TP", "${TP}", "${TP:-2}"):
        (told,) = faults(written(tmp_path, env(f'"{word}"', two)), ON)
        assert f":6: args: holds {word}, which no shell replaces here; allowed: $(TP)" in told
    (told,) = faults(written(tmp_path, env("$$(TP)", two)), ON)
    assert "-tp: is set by $$(TP)" in told
    doubled = ", ".join(f"{{name: A{n + 1}, value: $(A{n})$(A{n})}}" for n in range(60))
    (told,) = faults(written(tmp_path, env("$(A60)", f"[{{name: A0, value: x}}, {doubled}]")), ON)
    assert "which the file does not state" in told


def scaler(target: str, fewest: int, kind: str = "HorizontalPodAutoscaler", metadata: str = "{}") -> str:
    key = "minReplicas" if kind.startswith("H") else "minReplicaCount"
    return f"---\nkind: {kind}\nmetadata: {metadata}\nspec: {{scaleTargetRef: {{{target}}}, {key}: {fewest}}}\n"


def test_an_autoscaler_is_of_one_kind_and_namespace(tmp_path: Path) -> None:
    own = KINDS["deployment"]
    of_set = scaler("kind: StatefulSet, name: chat", 9)
    assert only(existing(written(tmp_path, own + of_set), UserFacts())).launched.replicas == 3
    both = [scaler("kind: Deployment, name: chat", count, metadata=f"{{namespace: n{count}}}") for count in (4, 5)]
    assert only(existing(written(tmp_path, own + both[0]), UserFacts())).launched.replicas == 4
    (told,) = faults(written(tmp_path, own + "".join(both)), UserFacts())
    assert "replicas: is scaled by 2 autoscalers" in told
    assert only(existing(written(tmp_path, own + "".join(both)), UserFacts(replicas=5))).launched.replicas == 5


def test_a_scaled_object_that_goes_to_zero_has_one_fault(tmp_path: Path) -> None:
    text = KINDS["deployment"] + scaler("name: chat", 0, "ScaledObject")
    (told,) = faults(written(tmp_path, text), UserFacts())
    assert "minReplicaCount: must be a whole number above 0, not 0" in told


@pytest.mark.parametrize("word", ["${TP:?}", "$TP", "${TP}"])
def test_compose_replaces_nothing_by_the_environment_of_a_service(tmp_path: Path, word: str) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(
        "services:\n  chat:\n    image: vllm/vllm-openai:v0.19.0\n    environment: {TP: '2'}\n"
        f"    command: --model meta-llama/Llama-3.1-8B-Instruct -tp {word}\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError) as caught:
        existing(str(path), UserFacts(gpu="h100-sxm", replicas=1))
    assert "takes $TP of Compose's shell or .env" in str(caught.value)
