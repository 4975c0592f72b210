"""Replicas and nodes as manifests state them: counts, autoscalers, groups of pods, lists and charts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from manifest_builders import IMAGE, KINDS, MODEL, NODE, faults, only, written

from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts
from sizing.launch.terms import layout_of
from sizing.specs.errors import InputError

LEADER_WORKERS = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: deepseek}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
        containers:
        - image: vllm/vllm-openai:v0.33.0
          args: [--model, deepseek-ai/DeepSeek-V3, -dp, "16", -ep, --data-parallel-size-local, "8"]
          resources: {limits: {nvidia.com/gpu: "8"}}
    workerTemplate:
      spec:
        containers:
        - image: vllm/vllm-openai:v0.33.0
          args: [--model, deepseek-ai/DeepSeek-V3, -dp, "16", -ep, --data-parallel-size-local, "8", --headless]
          resources: {limits: {nvidia.com/gpu: "8"}}
"""


def test_nodes_of_one_instance_are_one_replica(tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, LEADER_WORKERS), UserFacts())).launched
    assert (found.replicas, layout_of(found).gpus, found.reserved_gpus) == (2, 16, 16)


@pytest.mark.parametrize(
    ("replicas", "gpus", "told"),
    [
        ("0", "4", ["replicas: must be a whole number above 0, not 0"]),
        ("-1", "4", ["replicas: must be a whole number above 0, not -1"]),
        (".nan", "4", ["replicas: must be a whole number above 0, not nan"]),
        ("'2'", "4", ["replicas: must be a whole number above 0, not '2'"]),
        ("true", "4", ["replicas: must be a whole number above 0, not true"]),
        ("1", "1.5", ["resources.limits.nvidia.com/gpu: must be a whole number above 0, not '1.5'"]),
        ("1", "many", ["resources.limits.nvidia.com/gpu: must be a whole number above 0, not 'many'"]),
        ("2.5", "0", ["replicas: must be", "resources.limits.nvidia.com/gpu: must be"]),
    ],
)
def test_counts_of_a_manifest_are_counts(replicas: str, gpus: str, told: list[str], tmp_path: Path) -> None:
    text = KINDS["deployment"].replace("replicas: 3", f"replicas: {replicas}").replace('gpu: "4"', f'gpu: "{gpus}"')
    found = faults(path := written(tmp_path, text), UserFacts())
    assert all(any(words in fault for fault in found) for words in told)
    assert all(f"{path}:6: replicas" in fault for fault in found if " replicas:" in fault)


def test_a_user_says_how_many_run_where_the_file_says_none(tmp_path: Path) -> None:
    path = written(tmp_path, KINDS["deployment"].replace("replicas: 3", "replicas: 0"))
    assert only(existing(path, UserFacts(replicas=2))).launched.replicas == 2


def test_charts_and_compose_may_quote_their_counts(tmp_path: Path) -> None:
    text = KINDS["production stack"].replace("replicaCount: 3", "replicaCount: '3'")
    assert only(existing(written(tmp_path, text), UserFacts())).launched.replicas == 3


@pytest.mark.parametrize(
    ("kind", "fewest", "most"),
    [("HorizontalPodAutoscaler", "minReplicas", "maxReplicas"), ("ScaledObject", "minReplicaCount", "maxReplicaCount")],
)
def test_an_autoscaler_s_fewest_replicas_are_those_that_run(kind: str, fewest: str, most: str, tmp_path: Path) -> None:
    scaler = f"---\nkind: {kind}\nspec: {{scaleTargetRef: {{name: chat}}, {fewest}: 2, {most}: 6}}\n"
    found = only(existing(written(tmp_path, KINDS["deployment"] + scaler), UserFacts()))
    assert found.launched.replicas == 2
    assert "the fewest replicas of the autoscaler, 2, of at most 6" in found.assumed


WIDE = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: wide-ep}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      spec:
        nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}
        containers:
        - image: vllm/vllm-openai:v0.33.0
          env: [{name: DP_SIZE_LOCAL, value: "8"}]
          command: [/bin/bash, -c]
          args:
          - |
            START_RANK=$(( ${LWS_WORKER_INDEX:-0} * DP_SIZE_LOCAL ))
            exec vllm serve deepseek-ai/DeepSeek-V3 --enable-expert-parallel \\
              --data-parallel-size $((LWS_GROUP_SIZE * DP_SIZE_LOCAL)) --data-parallel-size-local $DP_SIZE_LOCAL \\
              --data-parallel-address $(LWS_LEADER_ADDRESS) --data-parallel-start-rank $START_RANK --max-num-seqs 64
          resources: {limits: {nvidia.com/gpu: 8}}
"""


def test_sizes_of_a_group_of_pods_stand_as_numbers(tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, WIDE.replace("$((LWS_GROUP_SIZE * DP_SIZE_LOCAL))", "16")), UserFacts()))
    layout = layout_of(found.launched)
    assert (layout.dp, layout.ep, found.launched.replicas, found.launched.reserved_gpus) == (16, 16, 1, 16)
    assert found.launched.serving.max_num_seqs == 64 and found.nodes == 2
    (told,) = faults(written(tmp_path, WIDE), UserFacts())
    assert ":19: --data-parallel-size: is known only as it runs" in told and "allowed: a whole number above 0" in told


def test_a_group_of_pods_says_its_nodes(tmp_path: Path) -> None:
    """The rank is a variable, and the number of nodes the size of the group."""
    words = [*NODES.replace("--nnodes 2", "--nnodes $(LWS_GROUP_SIZE)").split(), "--node-rank", "$(LWS_WORKER_INDEX)"]
    pod = f"{{spec: {{{NODE}, containers: [{{image: 'lmsysorg/sglang:v0.5.9', command: {json.dumps(words)}, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}}}"
    group = f"{{size: 2, leaderTemplate: {pod}, workerTemplate: {pod}}}"
    text = f"kind: LeaderWorkerSet\nspec: {{replicas: 3, leaderWorkerTemplate: {group}}}\n"
    found = only(existing(written(tmp_path, text), UserFacts()))
    assert (found.launched.replicas, layout_of(found.launched).gpus, found.launched.reserved_gpus, found.nodes) == (
        3,
        16,
        16,
        2,
    )


NODES = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2"


def test_nodes_of_a_script_are_one_replica(tmp_path: Path) -> None:
    text = f"{NODES} --node-rank 0 --dist-init-addr a:1\nRANK=1\n{NODES} --node-rank $RANK --dist-init-addr a:1\n"
    found = only(existing(written(tmp_path, text, "start.sh"), UserFacts(gpu="h100-sxm", replicas=2)))
    assert (found.launched.replicas, layout_of(found.launched).gpus, found.nodes) == (2, 16, 2)


def test_pods_of_a_stateful_set_that_count_their_rank_are_nodes(tmp_path: Path) -> None:
    words = [*NODES.split(), "--node-rank", "$(POD_INDEX)"]
    text = f"""\
kind: StatefulSet
spec:
  replicas: 4
  template:
    spec:
      {NODE}
      containers: [{{image: "lmsysorg/sglang:v0.5.9", command: {json.dumps(words)}, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]
"""
    found = only(existing(written(tmp_path, text), UserFacts()))
    assert (found.launched.replicas, found.launched.reserved_gpus, found.nodes) == (2, 16, 2)
    (told,) = faults(written(tmp_path, text.replace("replicas: 4", "replicas: 3")), UserFacts())
    assert "3 pods are no whole instances of 2 nodes" in told


def test_further_pods_of_a_group_may_reserve_fewer(tmp_path: Path) -> None:
    """Two pods run a replica of 16 GPUs: one of 8, and one that reserves 4."""
    pod = "{spec: {containers: [{image: '%s', command: [%s], resources: {limits: {nvidia.com/gpu: %d}}}]}}"
    serves = f"vllm, serve, {MODEL}, -tp, '8', -pp, '2', --nnodes, '2', --node-rank, '%s', --master-addr, $(LWS_LEADER_ADDRESS)"
    text = "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec:\n  replicas: 1\n  leaderWorkerTemplate:\n    size: 2\n"
    text += f"    leaderTemplate: {pod % (IMAGE, serves % 0, 8)}\n    workerTemplate: {pod % (IMAGE, serves % 1, 4)}\n"
    found = only(existing(written(tmp_path, text), UserFacts(gpu="h100-sxm")))
    assert (found.nodes, layout_of(found.launched).gpus, found.launched.reserved_gpus) == (2, 16, 12)


def test_workers_of_kserve_are_stages_of_the_pipeline(tmp_path: Path) -> None:
    text = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: r1}
spec:
  predictor:
    minReplicas: 1
    model: {modelFormat: {name: huggingface}, storageUri: "hf://deepseek-ai/DeepSeek-R1", args: [--max-model-len=8192], resources: {limits: {nvidia.com/gpu: 8}}}
    workerSpec: {pipelineParallelSize: 2, tensorParallelSize: 8}
"""
    found = only(existing(written(tmp_path, text), UserFacts(gpu="h200-sxm")))
    assert (layout_of(found.launched).tp, layout_of(found.launched).pp, found.nodes, found.launched.reserved_gpus) == (
        8,
        2,
        2,
        16,
    )


@pytest.mark.parametrize(("fewest", "replicas"), [('"2"', 2), ('"0"', None)])
def test_the_fewest_replicas_of_knative_are_those_that_run(fewest: str, replicas: int | None, tmp_path: Path) -> None:
    text = f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: chat, annotations: {{autoscaling.knative.dev/min-scale: {fewest}}}}}
spec: {{predictor: {{model: {{modelFormat: {{name: huggingface}}, args: [--model_id={MODEL}, --backend=vllm], resources: {{limits: {{nvidia.com/gpu: "1"}}}}}}}}}}
"""
    if replicas is None:
        with pytest.raises(InputError, match="must be a whole number above 0, not '0'"):
            existing(written(tmp_path, text), UserFacts(gpu="h100-sxm"))
    else:
        assert only(existing(written(tmp_path, text), UserFacts(gpu="h100-sxm"))).launched.replicas == replicas


def test_manifests_of_a_list_are_each_their_own_and_pods_of_a_job_are_replicas(tmp_path: Path) -> None:
    pod = f"{{spec: {{containers: [{{image: '{IMAGE}', args: [--model, {MODEL}], resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}}}"
    text = f"""\
apiVersion: v1
kind: List
items:
- {{apiVersion: apps/v1, kind: Deployment, metadata: {{name: one}}, spec: {{replicas: 2, template: {pod}}}}}
- {{apiVersion: batch/v1, kind: Job, metadata: {{name: two}}, spec: {{parallelism: 5, template: {pod}}}}}
"""
    found = existing(written(tmp_path, text), UserFacts(gpu="h100-sxm"))
    assert [(each.launched.name, each.launched.replicas, each.lines["replicas"]) for each in found] == [
        ("one", 2, 4),
        ("two", 5, 5),
    ]
    assert not any(each.doubt for each in found)
    bare = text.replace("{limits: {nvidia.com/gpu: 1}}", "{}")
    assert all(each.doubt for each in existing(written(tmp_path, bare), UserFacts(gpu="h100-sxm")))


def test_services_of_compose_that_start_the_same_are_replicas(tmp_path: Path) -> None:
    text = "services:\n" + "".join(
        f"  llm-{n}: {{image: '{IMAGE}', command: --model {MODEL} -tp 4 --max-num-seqs {seqs}, deploy: {{resources: {{reservations: {{devices: [{{capabilities: [gpu], device_ids: {ids}}}]}}}}}}}}\n"
        for n, seqs, ids in ((1, 64, [0, 1, 2, 3]), (2, 64, [4, 5, 6, 7]), ("b", 128, [8, 9, 10, 11]))
    )
    found = existing(written(tmp_path, text), UserFacts(gpu="h100-sxm"))
    assert [(each.launched.name, each.launched.replicas, each.launched.reserved_gpus) for each in found] == [
        ("llm", 2, 4),
        ("llm-b", 1, 4),
    ]
    assert found[0].assumed == ("2 replicas: 2 services start the same",) and found[0].doubt is None
    scaled = text.replace("deploy: {resources", "deploy: {replicas: 2, resources")
    told = faults(written(tmp_path, scaled), UserFacts(gpu="h100-sxm"))
    assert len(told) == 3 and ":2: replicas: Docker gives all 2 replicas of llm-1 the same cards: 0, 1, 2, 3" in told[0]


STARTS = "CUDA_VISIBLE_DEVICES={} vllm serve " + MODEL + " -tp 2 --port 800{} &\n"


def test_commands_of_a_script_that_start_the_same_are_replicas(tmp_path: Path) -> None:
    script = "".join(STARTS.format(f"{2 * n},{2 * n + 1}", n) for n in range(4))
    for head in ("# llmsize/gpu=h100-sxm\n", "# llmsize/name=chat llmsize/gpu=h100-sxm llmsize/replicas=4\n"):
        found = only(existing(written(tmp_path, head + script, "run.sh"), UserFacts()))
        assert (found.launched.gpu, found.launched.replicas, found.launched.reserved_gpus) == ("h100-sxm", 4, 2)
        assert found.assumed[-1] == "4 replicas: 4 commands start the same"
    (told,) = faults(written(tmp_path, head.replace("=4", "=3") + script, "run.sh"), UserFacts())
    assert "run.sh:1: replicas: is 3, and 4 commands start the same" in told
    same = "".join(STARTS.format("0,1", n) for n in range(4))
    (told,) = faults(written(tmp_path, same, "run.sh"), UserFacts(gpu="h100-sxm"))
    assert "the command of line 1, " in told and "would run on the same cards: 0, 1" in told


OFF = "prefill:\n  SWITCH: false\n  replicas: 3\n  parallelism: {tensor: 8}\n  containers:\n"
OFF += '  - {name: vllm, image: "ghcr.io/llm-d/llm-d:v0.2.0", modelCommand: vllmServe, args: ["--max-model-len", "16384"]}\n'


@pytest.mark.parametrize("switch", ["create", "enabled"])
def test_what_a_chart_does_not_make_does_not_count(switch: str, tmp_path: Path) -> None:
    asked = UserFacts(engine="vllm:0.12.0")
    found = only(existing(written(tmp_path, KINDS["llm-d"] + OFF.replace("SWITCH", switch)), asked))
    assert (found.launched.replicas, layout_of(found.launched).gpus, found.launched.role) == (3, 4, "whole")
    line = KINDS["llm-d"].count("\n") + 2
    assert any(each.startswith(f"prefill.{switch} is false (line {line})") for each in found.assumed)
    running = KINDS["llm-d"] + OFF.replace("SWITCH: false", f"{switch}: true\n  {NODE}")
    assert {each.launched.role for each in existing(written(tmp_path, running), asked)} == {"prefill", "decode"}
    (told,) = faults(written(tmp_path, KINDS["llm-d"].replace("decode:\n", f"decode:\n  {switch}: false\n")), asked)
    assert f"decode.{switch}: is false: nothing is started" in told


@pytest.mark.parametrize(
    ("more", "replicas"),
    [
        ("keda: {enabled: true, minReplicaCount: 2, maxReplicaCount: 5}", 2),
        ("keda: {enabled: true, maxReplicaCount: 5}", 1),
        ("keda: {enabled: false, minReplicaCount: 2}", 3),
        ("autoscaling: {enabled: true, minReplicas: 2, maxReplicas: 5}", 2),
    ],
)
def test_an_autoscaler_of_a_chart_counts_if_it_is_enabled(more: str, replicas: int, tmp_path: Path) -> None:
    text = KINDS["production stack"].replace("replicaCount: 3", f"replicaCount: 3\n    {more}")
    found = only(existing(written(tmp_path, text), UserFacts()))
    assert found.launched.replicas == replicas
    assert (f"the fewest replicas of the autoscaler, {replicas}, of at most 5" in found.assumed) == (replicas != 3)


def test_a_ray_cluster_of_a_chart_is_refused(tmp_path: Path) -> None:
    head = "replicaCount: 3\n    raySpec: {headNode: {requestGPU: 2}}"
    (told,) = faults(written(tmp_path, KINDS["production stack"].replace("replicaCount: 3", head)), UserFacts())
    assert ":8: raySpec: starts one engine on a Ray cluster" in told


@pytest.mark.parametrize("bundles", ["[{GPU: 4}]", "[{GPU: 1, CPU: 2}, {CPU: 8}, {GPU: 3}]"])
def test_bundles_of_ray_serve_are_reserved(bundles: str, tmp_path: Path) -> None:
    config = "{model_loading_config: {model_id: llama-3.1-8b}, accelerator_type: H100, engine_kwargs: {tensor_parallel_size: 2},"
    config += f" deployment_config: {{autoscaling_config: {{min_replicas: 2}}}}, placement_group_config: {{bundles: {bundles}}}}}"
    text = f"applications:\n- args: {{llm_configs: [{config}]}}\n"
    found = only(existing(written(tmp_path, text), UserFacts(engine="vllm:0.12.0")))
    assert (found.launched.replicas, found.launched.reserved_gpus) == (2, 4)
    assert "the fewest replicas of the autoscaler, 2" in found.assumed


@pytest.mark.parametrize(
    "pool",
    [
        "nodeSelector: {node.kubernetes.io/instance-type: Standard_ND96isr_H100_v5}",
        "nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-mega-80gb}",
        "acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-H100-80GB-HBM3]}",
    ],
)
def test_nodes_say_their_gpu_type(pool: str, tmp_path: Path) -> None:
    text = KINDS["llm-d"].replace(NODE, pool)
    assert only(existing(written(tmp_path, text), UserFacts(engine="vllm:0.12.0"))).launched.gpu == "h100-sxm"
