"""Deployments as people write them: each kind of manifest says the same, and what it does not say is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sizing.launch.existing import Existing, Filled, existing
from sizing.launch.terms import layout_of
from sizing.specs.errors import InputError

ARGS = "--tensor-parallel-size 4 --max-model-len 16384 --gpu-memory-utilization 0.9 --kv-cache-dtype fp8 --port 8080"
LISTED = "[" + ", ".join(f'"{word}"' for word in ARGS.split()) + "]"
MODEL = "meta-llama/Llama-3.1-70B-Instruct"
NODE = "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}"
GPUS = 'resources: {limits: {nvidia.com/gpu: "4"}}'
IMAGE = "vllm/vllm-openai:v0.19.0"
KINDS = {
    "deployment": f"""\
# a comment
apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat}}
spec:
  replicas: 3
  template:
    spec:
      {NODE}
      containers:
      - name: proxy
        image: envoy:v1
        args: [--listen, "80"]
      - name: engine
        image: {IMAGE}
        args: ["--model", "{MODEL}", {LISTED[1:]}
        {GPUS}
---
apiVersion: v1
kind: Service
metadata: {{name: chat}}
""",
    "shell in a pod": f"""\
kind: Deployment
spec:
  replicas: 3
  template:
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchExpressions:
              - {{key: cloud.google.com/gke-accelerator, operator: In, values: [nvidia-h100-80gb]}}
      containers:
      - image: {IMAGE}
        command: [/bin/sh, -c]
        env: [{{name: MODEL, value: "{MODEL}"}}, {{name: TP, value: "4"}}]
        args:
        - |
          echo start && mkdir -p /cache
          exec vllm serve $MODEL \\
            {ARGS.replace("size 4", "size ${TP:-2}")}
        {GPUS}
""",
    "kserve": f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: chat}}
spec:
  predictor:
    minReplicas: 3
    {NODE}
    model:
      modelFormat: {{name: huggingface}}
      storageUri: "hf://{MODEL}"
      args: {LISTED}
      {GPUS}
""",
    "production stack": f"""\
servingEngineSpec:
  modelSpec:
  - name: chat
    repository: vllm/vllm-openai
    tag: v0.19.0
    modelURL: {MODEL}
    replicaCount: 3
    requestGPU: 4
    {NODE}
    vllmConfig:
      tensorParallelSize: 4
      maxModelLen: 16384
      gpuMemoryUtilization: 0.9
      extraArgs: ["--kv-cache-dtype=fp8", "--port", "8080"]
""",
    "llm-d": f"""\
modelArtifacts: {{uri: "hf://{MODEL}"}}
{NODE}
decode:
  replicas: 3
  parallelism: {{tensor: 4}}
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d:v0.2.0
    modelCommand: vllmServe
    args: ["--max-model-len", "16384", "--gpu-memory-utilization", "0.9", "--kv-cache-dtype", "fp8"]
    {GPUS}
""",
    "dynamo": f"""\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {{name: chat}}
spec:
  services:
    Frontend: {{replicas: 1, extraPodSpec: {{mainContainer: {{command: [python3, -m, dynamo.frontend]}}}}}}
    VllmWorker:
      replicas: 3
      resources: {{limits: {{gpu: "4"}}}}
      extraPodSpec:
        {NODE}
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.5.0
          command: [python3, -m, dynamo.vllm]
          args: ["--model", "{MODEL}", {LISTED[1:]}
""",
    "compose": f"""\
x-engine: &engine
  image: {IMAGE}
  command: --model {MODEL} {ARGS}
  labels: [llmsize/gpu=h100-sxm]
services:
  chat-1: &chat
    <<: *engine
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, device_ids: ["0", "1", "2", "3"], capabilities: [gpu]}}]}}}}}}
  chat-2: {{<<: *chat, deploy: {{resources: {{reservations: {{devices: [{{device_ids: ["4", "5", "6", "7"], capabilities: [gpu]}}]}}}}}}}}
  chat-3: {{<<: [{{gpus: [{{device_ids: ["8", "9", "10", "11"]}}]}}, *engine]}}
""",
    "own": f"""\
deployments:
- name: chat
  model: {MODEL}
  gpu: h100-sxm
  replicas: 3
  reserved_gpus: 4
  kv_precision: fp8
  serving: {{engine: "vllm:0.19.0", tp: 4, max_model_len: 16384, memory_fraction: 0.9}}
policy: {{max_gpus: 12}}
""",
}  # fmt: skip


def written(tmp_path: Path, text: str, name: str = "deploy.yaml") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def only(found: list[Existing]) -> Existing:
    (one,) = found
    return one


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_the_same(kind: str, tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, KINDS[kind]), Filled()))
    launched = found.launched
    assert (launched.model, launched.gpu, launched.replicas, launched.reserved_gpus) == (MODEL, "h100-sxm", 3, 4)
    assert layout_of(launched).gpus == layout_of(launched).tp == 4
    assert (launched.serving.max_model_len, launched.serving.memory_fraction, launched.kv_precision) == (
        16384,
        0.9,
        "fp8",
    )
    assert launched.role == "whole"  # llm-d calls its only pool decode
    version = "0.33.0" if kind in ("kserve", "llm-d", "dynamo") else "0.19.0"  # whose tags are not the engine's
    assert launched.serving.engine == f"vllm:{version}"


def test_flags_have_the_lines_on_which_they_stand(tmp_path: Path) -> None:
    text = KINDS["deployment"]
    lines = only(existing(written(tmp_path, text), Filled())).lines
    place = next(number for number, line in enumerate(text.splitlines(), 1) if "--tensor-parallel-size" in line)
    assert lines["tp"] == lines["model"] == place
    assert lines["replicas"] == 6


def test_pools_are_told_by_flags_or_by_names(tmp_path: Path) -> None:
    decode = KINDS["llm-d"].partition("decode:\n")
    text = decode[0] + "prefill:\n" + decode[2].replace("replicas: 3", "replicas: 1") + "decode:\n" + decode[2]
    found = existing(written(tmp_path, text), Filled())
    assert [(each.launched.role, each.launched.replicas) for each in found] == [("prefill", 1), ("decode", 3)]
    line = f"vllm serve {MODEL} -tp 4 --kv-transfer-config "
    config = '\'{"kv_connector": "NixlConnector", "kv_role": "%s"}\''
    for role, ours in (("kv_consumer", "decode"), ("kv_both", "whole")):
        one = only(existing(line + config % role, Filled(gpu="h100-sxm", replicas=1)))
        assert one.launched.role == ours


SCRIPT = """#!/usr/bin/env bash
# start it
export TP=8
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 \\
    --tp-size $TP --dp-size 8 --enable-dp-attention --ep-size 8 \\
    --mem-fraction-static 0.85 --trust-remote-code --max-running-requests 512 2>&1 | tee log
"""


def test_a_script_of_sglang_counts_as_sglang_does(tmp_path: Path) -> None:
    found = only(
        existing(written(tmp_path, SCRIPT, "start.sh"), Filled(gpu="h200-sxm", replicas=2, engine="sglang:0.5.9"))
    )
    layout = layout_of(found.launched)
    assert (layout.tp, layout.dp, layout.ep, layout.gpus) == (1, 8, 8, 8)
    assert found.launched.serving.max_num_seqs == 64  # of each of the eight ranks
    assert found.lines["tp"] == 5 and found.lines["memory_fraction"] == 6


DOCKER = f"""\
docker run -d --gpus all --ipc=host -p 8000:8000 -e HF_TOKEN=$HF_TOKEN \\
    -v ./models:/models \\
    vllm/vllm-openai:v0.19.0 \\
    --model {MODEL} --tensor-parallel-size 4 --max-model-len 16384
"""


@pytest.mark.parametrize("name", ["start.sh", "start"])
def test_a_container_s_command_is_what_follows_its_image(name: str, tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, DOCKER, name), Filled(gpu="h100-sxm", replicas=2)))
    assert (found.launched.model, layout_of(found.launched).tp) == (MODEL, 4)
    assert found.launched.serving.engine == "vllm:0.19.0" and found.lines["tp"] == 4
    assert only(existing(DOCKER, Filled(gpu="h100-sxm", replicas=2))).launched == found.launched


def test_ranks_of_a_dense_model_are_replicas() -> None:
    line = f"vllm serve {MODEL} -tp 2 --data-parallel-size 4"
    found = only(existing(line, Filled(gpu="h100-sxm", replicas=3))).launched
    assert (found.replicas, layout_of(found).gpus) == (12, 2)


@pytest.mark.parametrize(
    ("line", "length"),
    [
        (f"vllm serve {MODEL} -tp 4", 131072),  # which vLLM must hold to start
        (f"vllm serve {MODEL} -tp 4 --max-model-len auto", None),
        (f"python -m sglang.launch_server --model-path {MODEL} --tp 4", None),  # which admits what fits
    ],
)
def test_without_a_length_the_model_s_own_must_fit_where_the_engine_says_so(line: str, length: int | None) -> None:
    assert only(existing(line, Filled(gpu="h100-sxm", replicas=1))).launched.serving.max_model_len == length


@pytest.mark.parametrize(
    ("model", "flag", "precision"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "fp8", "fp8"),
        ("nvidia/Llama-3.1-70B-Instruct-FP4", "modelopt", None),  # whose name says it: modelopt reads both
        ("deepseek-ai/DeepSeek-V3", "fp8", None),
    ],
)
def test_the_flag_of_a_quantised_checkpoint_says_how_to_read_it(model: str, flag: str, precision: str | None) -> None:
    line = f"vllm serve {model} -tp 8 --quantization {flag}"
    assert only(existing(line, Filled(gpu="h100-sxm", replicas=1))).launched.precision == precision


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
    found = only(existing(written(tmp_path, LEADER_WORKERS), Filled())).launched
    assert (found.replicas, layout_of(found).gpus, found.reserved_gpus) == (2, 16, 16)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"vllm serve {MODEL} --tensor-paralel-size 2", "--tensor-paralel-size: is not known of vLLM 0.33.0"),
        (f"vllm serve {MODEL} --tensor-paralel-size 2", "did you mean --tensor-parallel-size?"),
        (f"vllm serve {MODEL} -tp two", "must be a whole number above 0, not 'two'"),
        (f"vllm serve {MODEL} --max-num-seqs", "--max-num-seqs: has no value"),
        (f"vllm serve {MODEL} --speculative-config nonsense", "must be a JSON object"),
        ("vllm serve /models/mine -tp 2", "-m with its name or config.json"),
        (f"vllm serve {MODEL} --max-num-seqs -5", "--max-num-seqs: must be a whole number above 0, not '-5'"),
        (f"vllm serve {MODEL} --max-num-seqs 1.5k --max-model-len 0", "--max-model-len: must be a whole number above 0, not '0'"),
        (f"trtllm-serve {MODEL} --max_batch_size -4", "--max_batch_size: must be a whole number above 0, not '-4'"),
        (f"trtllm-serve {MODEL} --tp_size 2.0", "--tp_size: must be a whole number above 0, not '2.0'"),
        (f"vllm serve {MODEL} --gpu-memory-utilization 1.5", "must be a share above 0 and at most 1, not '1.5'"),
        (f"sglang serve --model {MODEL} --mem-fraction-static nan", "must be a share above 0 and at most 1, not 'nan'"),
        (f"vllm serve {MODEL} --compilation-config '{{\"level\": 3'", "--compilation-config: must be a JSON object"),
        (f"vllm serve {MODEL} --kv-transfer-config '{{kv_role: kv_both}}'", "--kv-transfer-config: must be a JSON object"),
        (f"vllm serve {MODEL} --speculative-config '[]'", "--speculative-config: must be a JSON object, not '[]'"),
        (f"vlm serve {MODEL}", "holds no command of an engine that is known"),
        (f"vlm serve {MODEL}", "did you mean vllm serve?"),
        (f"vllm sevre {MODEL}", "did you mean vllm serve?"),
        (f"python -m sglang.lanch_server --model {MODEL}", "did you mean sglang.launch_server?"),
        ("sglang serve --model-path " + MODEL + " --attn-dp-size 3 --tp-size 8", "are not divided by 3"),
        ("trtllm-serve " + MODEL + " --config missing.yaml", "'missing.yaml' is not here"),
        (f"vllm serve {MODEL} --hf-overrides '{{\"num_hidden_layers\": 8}}'", "num_hidden_layers: is another model than the checkpoint's"),
        (f"sglang serve --model {MODEL} --json-model-override-args '{{\"hidden_size\": 8}}'", "hidden_size: is another model"),
        (f"vllm serve {MODEL} --dtype float32", "--dtype: float32 changes what is predicted, and is not read; allowed: auto, half"),
        (f"vllm serve {MODEL} --num-gpu-blocks-override=64", "64 changes what is predicted"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(line: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        existing(line, Filled(gpu="h100-sxm", replicas=1))
    assert words in str(caught.value)


def faults(path: str, filled: Filled) -> list[str]:
    with pytest.raises(InputError) as caught:
        existing(path, filled)
    return [str(fault) for fault in caught.value.faults]


def test_all_faults_of_a_command_are_told_at_once() -> None:
    line = f"vllm serve {MODEL} -tp 0 --max-num-seqs -1 --bogus 3 --kv-cache-dtype fp9 --hf-overrides x"
    told = faults(line, Filled())
    assert len(told) == 6
    for words in (
        "-tp",
        "--max-num-seqs",
        "--bogus",
        "--kv-cache-dtype",
        "--hf-overrides",
        "does not say the GPU type",
    ):
        assert any(words in fault for fault in told), words


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
    found = faults(path := written(tmp_path, text), Filled())
    assert all(any(words in fault for fault in found) for words in told)
    assert all(f"{path}:6: replicas" in fault for fault in found if " replicas:" in fault)


def test_a_user_says_how_many_run_where_the_file_says_none(tmp_path: Path) -> None:
    path = written(tmp_path, KINDS["deployment"].replace("replicas: 3", "replicas: 0"))
    assert only(existing(path, Filled(replicas=2))).launched.replicas == 2


def test_charts_and_compose_may_quote_their_counts(tmp_path: Path) -> None:
    text = KINDS["production stack"].replace("replicaCount: 3", "replicaCount: '3'")
    assert only(existing(written(tmp_path, text), Filled())).launched.replicas == 3


@pytest.mark.parametrize(
    ("kind", "fewest", "most"),
    [("HorizontalPodAutoscaler", "minReplicas", "maxReplicas"), ("ScaledObject", "minReplicaCount", "maxReplicaCount")],
)
def test_an_autoscaler_s_fewest_replicas_are_those_that_run(kind: str, fewest: str, most: str, tmp_path: Path) -> None:
    scaler = f"---\nkind: {kind}\nspec: {{scaleTargetRef: {{name: chat}}, {fewest}: 2, {most}: 6}}\n"
    found = only(existing(written(tmp_path, KINDS["deployment"] + scaler), Filled()))
    assert found.launched.replicas == 2
    assert "the fewest replicas of the autoscaler, 2, of at most 6" in found.assumed


def test_a_nim_picks_by_itself_what_nobody_can_know(tmp_path: Path) -> None:
    text = """\
kind: Deployment
metadata: {name: nim}
spec:
  template:
    spec:
      containers:
      - image: nvcr.io/nim/meta/llama-3.1-70b-instruct:1.8
        env: [{name: NIM_MODEL_PROFILE, value: vllm-fp8-tp4}]
"""
    (told,) = faults(written(tmp_path, text), Filled(gpu="h100-sxm"))
    assert ":7: nvcr.io/nim" in told and "NIM_MODEL_PROFILE (vllm-fp8-tp4)" in told


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        (f"CUDA_VISIBLE_DEVICES=0,1 vllm serve {MODEL} -tp 4", 2),
        (f"export CUDA_VISIBLE_DEVICES=0,1,2,3 && vllm serve {MODEL} -tp 4", 4),
        (f"CUDA_VISIBLE_DEVICES=0 true; vllm serve {MODEL} -tp 4", None),
        (f"docker run --gpus '\"device=0,1\"' vllm/vllm-openai:v0.19.0 --model {MODEL} -tp 4", 2),
        (
            f"podman run --device nvidia.com/gpu=0 --device nvidia.com/gpu=1 vllm/vllm-openai:v0.19.0 --model {MODEL} -tp 4",
            2,
        ),
        (f"docker run --gpus=2 vllm/vllm-openai:v0.19.0 --model {MODEL} -tp 4", 2),
        (f"docker run --gpus all -e CUDA_VISIBLE_DEVICES=3 vllm/vllm-openai:v0.19.0 --model {MODEL} -tp 4", 1),
        (f"docker run --gpus all vllm/vllm-openai:v0.19.0 --model {MODEL} -tp 4", None),
    ],
)
def test_gpus_that_a_command_sees_are_those_that_it_reserves(line: str, gpus: int | None) -> None:
    assert only(existing(line, Filled(gpu="h100-sxm", replicas=1))).launched.reserved_gpus == gpus


def test_a_flag_that_stands_twice_is_told() -> None:
    found = only(
        existing(
            f"vllm serve {MODEL} -tp 4 --max-num-seqs 8 -tp=2 --max-num-seqs 8", Filled(gpu="h100-sxm", replicas=1)
        )
    )
    assert layout_of(found.launched).tp == 2
    assert [(stated.flag, stated.value) for stated in found.again] == [("-tp", 2)]


@pytest.mark.parametrize(
    "level", ["-O3", "-O 3", "-O=3", "--compilation-config 3", "-cc.level 3", "--compilation-config '{\"level\": 3}'"]
)
def test_levels_of_compilation_are_read_as_vllm_reads_them(level: str) -> None:
    assert (
        only(existing(f"vllm serve {MODEL} {level} -tp 4", Filled(gpu="h100-sxm", replicas=1))).launched.serving.tp == 4
    )


def test_what_another_command_prints_ends_no_command() -> None:
    line = f"vllm serve {MODEL} --served-model-name $(cat name.txt) --port $((8000 + 1)) -tp 4"
    assert only(existing(line, Filled(gpu="h100-sxm", replicas=1))).launched.serving.tp == 4


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


def test_sizes_that_a_group_of_pods_reckons(tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, WIDE), Filled()))
    layout = layout_of(found.launched)
    assert (layout.dp, layout.ep, found.launched.replicas, found.launched.reserved_gpus) == (16, 16, 1, 16)
    assert found.launched.serving.max_num_seqs == 64 and found.nodes == 2
    (told,) = faults(written(tmp_path, WIDE.replace("LWS_GROUP_SIZE *", "OTHER *")), Filled())
    assert "--data-parallel-size: is set by ${=OTHER*DP_SIZE_LOCAL}, which the file does not state" in told


def test_a_group_of_pods_says_its_nodes(tmp_path: Path) -> None:
    """The rank is a variable, and the number of nodes the size of the group."""
    words = [*NODES.replace("--nnodes 2", "--nnodes $(LWS_GROUP_SIZE)").split(), "--node-rank", "$(LWS_WORKER_INDEX)"]
    pod = f"{{spec: {{{NODE}, containers: [{{image: 'lmsysorg/sglang:v0.5.9', command: {json.dumps(words)}, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}}}"
    group = f"{{size: 2, leaderTemplate: {pod}, workerTemplate: {pod}}}"
    text = f"kind: LeaderWorkerSet\nspec: {{replicas: 3, leaderWorkerTemplate: {group}}}\n"
    found = only(existing(written(tmp_path, text), Filled()))
    assert (found.launched.replicas, layout_of(found.launched).gpus, found.launched.reserved_gpus, found.nodes) == (
        3,
        16,
        16,
        2,
    )


NODES = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2"


def test_nodes_of_a_script_are_one_replica(tmp_path: Path) -> None:
    text = f"{NODES} --node-rank 0 --dist-init-addr a:1\nRANK=1\n{NODES} --node-rank $RANK --dist-init-addr a:1\n"
    found = only(existing(written(tmp_path, text, "start.sh"), Filled(gpu="h100-sxm", replicas=2)))
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
    found = only(existing(written(tmp_path, text), Filled()))
    assert (found.launched.replicas, found.launched.reserved_gpus, found.nodes) == (2, 16, 2)
    (told,) = faults(written(tmp_path, text.replace("replicas: 4", "replicas: 3")), Filled())
    assert "3 pods are no whole instances of 2 nodes" in told


def test_a_script_may_state_its_variables_by_default(tmp_path: Path) -> None:
    text = f'MODEL=${{MODEL:-{MODEL}}}\nTP=${{TP:-4}}\nGPUS=$TP\nvllm serve "$MODEL" -tp $GPUS --max-model-len 8k\n'
    found = only(existing(written(tmp_path, text, "run.sh"), ON_ONE)).launched
    assert (found.model, found.serving.tp) == (MODEL, 4)


def test_the_command_of_a_launcher_may_stand_in_quotes(tmp_path: Path) -> None:
    text = f'srun -N 2 bash -c "trtllm-llmapi-launch trtllm-serve {MODEL} --tp_size 16"\n'
    assert only(existing(written(tmp_path, text, "run.sh"), ON_ONE)).launched.serving.tp == 16


def test_flags_of_another_version_are_refused() -> None:
    line = f"vllm serve {MODEL} --all2all-backend naive"
    with pytest.raises(InputError, match=r"is no flag of vLLM 0\.9\.2; allowed: from 0\.12\.0"):
        existing(line, Filled(gpu="h100-sxm", replicas=1, engine="vllm:0.9.2"))


def test_a_flag_may_be_said_to_change_nothing() -> None:
    line = f"vllm serve {MODEL} --my-plugin x -tp 2"
    found = only(existing(line, Filled(gpu="h100-sxm", replicas=1, ignored=frozenset({"--my-plugin"}))))
    assert layout_of(found.launched).tp == 2 and found.passed == {"--my-plugin"}
    (told,) = faults(
        f"vllm serve {MODEL} --tensor-parallel-size 2", ON_ONE._replace(ignored=frozenset({"--tensor-parallel-size"}))
    )
    assert "--tensor-parallel-size: changes what is predicted" in told


ON_ONE = Filled(gpu="h100-sxm", replicas=1)


@pytest.mark.parametrize(
    "flags", ["--dtype auto", '--hf-overrides \'{"rope_scaling": {"factor": 2.0}}\'', "--cpu-offload-gb 0"]
)
def test_flags_that_change_nothing_with_these_values_are_read_over(flags: str) -> None:
    assert (
        only(existing(f"vllm serve {MODEL} {flags}", ON_ONE)).launched
        == only(existing(f"vllm serve {MODEL}", ON_ONE)).launched
    )


FLAGS = """\
# of vllm serve
model: meta-llama/Llama-3.1-70B-Instruct
tensor-parallel-size: 4
max_model_len: 8k
gpu-memory-utilization: 0.90
enforce-eager: true
enable-prefix-caching: false
speculative-config: {method: ngram, num_speculative_tokens: 3}
"""


def test_a_file_of_flags_counts_below_the_flags_themselves(tmp_path: Path) -> None:
    """It stands beside the script, in a heredoc, or in a ConfigMap of the same file; its lines are those of faults."""
    (tmp_path / "config.yaml").write_text(FLAGS, encoding="utf-8")
    starts = "vllm serve -tp 2 --config config.yaml\n"
    beside = only(existing(written(tmp_path, starts, "run.sh"), ON_ONE)).launched
    assert (beside.serving.tp, beside.serving.max_model_len, beside.serving.memory_fraction) == (2, 8000, 0.9)
    assert beside.serving.enforce_eager and beside.serving.prefix_caching is None and beside.speculative is not None
    here = f"cat > flags.yaml <<EOF\n{FLAGS}EOF\nvllm serve --config=flags.yaml --tensor-parallel-size 2\n"
    assert only(existing(written(tmp_path, here, "here.sh"), ON_ONE)).launched == beside
    indented = "".join(f"    {line}\n" for line in FLAGS.splitlines())
    mapped = f"kind: ConfigMap\ndata:\n  config.yaml: |\n{indented}---\nkind: Pod\nspec:\n  containers:\n  - image: {IMAGE}\n    args: [--config, /etc/x/config.yaml]\n"
    found = only(existing(written(tmp_path, mapped, "k.yaml"), Filled(gpu="h100-sxm")))
    assert found.launched.serving.tp == 4 and found.lines["tp"] == 6
    (told,) = faults(written(tmp_path, here.replace("enforce-eager", "enforce-eagr"), "here.sh"), ON_ONE)
    assert "here.sh:7: --enforce-eagr: is not known" in told
    (tmp_path / "config.yaml").write_text("config: config.yaml\n", encoding="utf-8")
    (told,) = faults(written(tmp_path, starts, "run.sh"), ON_ONE._replace(model=MODEL))
    assert "config.yaml:1: --config: 'config.yaml' is not here" in told


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry.example:5000/vllm:0.9", "0.9"),
        ("registry.example:5000/vllm/vllm-openai:v0.9.2@sha256:0a", "0.9.2"),
        ("rocm/vllm:rocm6.4.1_vllm_0.10.1_20250909", "0.10.1"),
        ("registry.example:5000/vllm/vllm-openai", "0.33.0"),
        ("vllm/vllm-openai-rocm:v0.20.1", "0.20.1"),  # of another vendor's GPUs
        ("mirror/own-vllm-openai-build:7.1", "0.33.0"),
        ("mirror/vllm:2024.05.1", "0.33.0"),  # of an image of somebody's own, whose tags are others
    ],
)
def test_an_image_s_tag_is_the_version_and_a_port_is_none(image: str, version: str, tmp_path: Path) -> None:
    text = f"kind: Pod\nspec:\n  containers:\n  - image: {image}\n    args: [--model, {MODEL}]\n"
    found = only(existing(written(tmp_path, text), Filled(gpu="h100-sxm")))
    assert found.launched.serving.engine == f"vllm:{version}"
    assert bool(found.assumed[0].startswith("vLLM 0.33.0")) == (version == "0.33.0")


POD_OF_SLICE = f"kind: Pod\nspec:\n  {NODE}\n  containers:\n  - image: {IMAGE}\n    args: [--model, llama-3.1-8b]\n    resources: {{limits: {{nvidia.com/mig-3g.40gb: 1}}}}\n"


def test_a_pod_may_ask_for_a_slice_of_a_card(tmp_path: Path) -> None:
    pod = POD_OF_SLICE
    found = only(existing(written(tmp_path, pod), Filled())).launched
    assert (found.gpu, found.reserved_gpus) == ("h100-sxm:3g.40gb", 1)
    bare = written(tmp_path, pod.replace(f"  {NODE}\n", ""))
    assert only(existing(bare, Filled(gpu="a100-sxm-80gb"))).launched.gpu == "a100-sxm-80gb:3g.40gb"
    assert only(existing(bare, Filled(gpu="h100-sxm:3g.40gb"))).launched.gpu == "h100-sxm:3g.40gb"
    (told,) = faults(bare, Filled(gpu="h100-sxm:1g.10gb"))
    assert "gpu: is h100-sxm:3g.40gb here, and --gpu says h100-sxm:1g.10gb" in told
    (told,) = faults(bare, Filled(gpu="l40s"))
    assert "no slice" in told


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nvidia.com/mig-3g.40gb: 1", "nvidia.com/gpu.shared: 1"),
        ("nvidia.com/mig-3g.40gb: 1", "nvidia.com/mig-3g.40gb.shared: 1"),
        ("nvidia.com/mig-3g.40gb: 1", "nvidia.com/gpu: 1, nvidia.com/gpumem: 20000"),
        ("nodeSelector: {", "nodeSelector: {cloud.google.com/gke-gpu-sharing-strategy: time-sharing, "),
        ("nodeSelector: {", "nodeSelector: {nvidia.com/gpu.replicas: '4', "),
        ("kind: Pod", "kind: Pod\nmetadata: {annotations: {gpu-fraction: '0.5'}}"),
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3-SHARED"),
    ],
)
def test_a_share_of_a_card_is_refused(old: str, new: str, tmp_path: Path) -> None:
    pod = POD_OF_SLICE.replace(old, new)
    assert pod != POD_OF_SLICE
    told = faults(written(tmp_path, pod), Filled(gpu="h100-sxm:3g.40gb"))
    assert any("gives a share of a card that others use too" in each for each in told)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"),
        ("nodeSelector: {", "nodeSelector: {cloud.google.com/gke-gpu-partition-size: 3g.40gb, "),
    ],
)
def test_gpus_of_nodes_may_all_be_slices(old: str, new: str, tmp_path: Path) -> None:
    pod = POD_OF_SLICE.replace("nvidia.com/mig-3g.40gb", "nvidia.com/gpu").replace(old, new)
    found = only(existing(written(tmp_path, pod), Filled())).launched
    assert (found.gpu, found.reserved_gpus) == ("h100-sxm:3g.40gb", 1)


def test_further_pods_of_a_group_may_reserve_fewer(tmp_path: Path) -> None:
    """Two pods run a replica of 16 GPUs: one of 8, and one that reserves 4."""
    pod = "{spec: {containers: [{image: '%s', command: [%s], resources: {limits: {nvidia.com/gpu: %d}}}]}}"
    serves = f"vllm, serve, {MODEL}, -tp, '8', -pp, '2', --nnodes, '2', --node-rank, '%s', --master-addr, $(LWS_LEADER_ADDRESS)"
    text = "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec:\n  replicas: 1\n  leaderWorkerTemplate:\n    size: 2\n"
    text += f"    leaderTemplate: {pod % (IMAGE, serves % 0, 8)}\n    workerTemplate: {pod % (IMAGE, serves % 1, 4)}\n"
    found = only(existing(written(tmp_path, text), Filled(gpu="h100-sxm")))
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
    found = only(existing(written(tmp_path, text), Filled(gpu="h200-sxm")))
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
            existing(written(tmp_path, text), Filled(gpu="h100-sxm"))
    else:
        assert only(existing(written(tmp_path, text), Filled(gpu="h100-sxm"))).launched.replicas == replicas


def test_manifests_of_a_list_are_each_their_own_and_pods_of_a_job_are_replicas(tmp_path: Path) -> None:
    pod = f"{{spec: {{containers: [{{image: '{IMAGE}', args: [--model, {MODEL}], resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}}}"
    text = f"""\
apiVersion: v1
kind: List
items:
- {{apiVersion: apps/v1, kind: Deployment, metadata: {{name: one}}, spec: {{replicas: 2, template: {pod}}}}}
- {{apiVersion: batch/v1, kind: Job, metadata: {{name: two}}, spec: {{parallelism: 5, template: {pod}}}}}
"""
    found = existing(written(tmp_path, text), Filled(gpu="h100-sxm"))
    assert [(each.launched.name, each.launched.replicas, each.lines["replicas"]) for each in found] == [
        ("one", 2, 4),
        ("two", 5, 5),
    ]
    assert not any(each.doubt for each in found)
    bare = text.replace("{limits: {nvidia.com/gpu: 1}}", "{}")
    assert all(each.doubt for each in existing(written(tmp_path, bare), Filled(gpu="h100-sxm")))


def test_services_of_compose_that_start_the_same_are_replicas(tmp_path: Path) -> None:
    text = "services:\n" + "".join(
        f"  llm-{n}: {{image: '{IMAGE}', command: --model {MODEL} -tp 4 --max-num-seqs {seqs}, deploy: {{resources: {{reservations: {{devices: [{{capabilities: [gpu], device_ids: {ids}}}]}}}}}}}}\n"
        for n, seqs, ids in ((1, 64, [0, 1, 2, 3]), (2, 64, [4, 5, 6, 7]), ("b", 128, [8, 9, 10, 11]))
    )
    found = existing(written(tmp_path, text), Filled(gpu="h100-sxm"))
    assert [(each.launched.name, each.launched.replicas, each.launched.reserved_gpus) for each in found] == [
        ("llm", 2, 4),
        ("llm-b", 1, 4),
    ]
    assert found[0].assumed == ("2 replicas: 2 services start the same",) and found[0].doubt is None
    scaled = text.replace("deploy: {resources", "deploy: {replicas: 2, resources")
    told = faults(written(tmp_path, scaled), Filled(gpu="h100-sxm"))
    assert len(told) == 3 and ":2: replicas: Docker gives all 2 replicas of llm-1 the same cards: 0, 1, 2, 3" in told[0]


DOCKER_OF_FOUR = "services:\n" + "".join(
    f"  llm-{n}: {{{{image: '{IMAGE}', command: --model {MODEL} -tp 2, {{0[{n}]}}}}}}\n" for n in range(4)
)
DEVICES = "deploy: {{resources: {{reservations: {{devices: [{{capabilities: [gpu], {}}}]}}}}}}"


@pytest.mark.parametrize(
    "stated",
    [
        "runtime: nvidia, environment: {NVIDIA_VISIBLE_DEVICES: '0,1'}",
        DEVICES.format("count: all") + ", environment: {CUDA_VISIBLE_DEVICES: '0,1'}",
        DEVICES.format("count: all") + ", environment: {NVIDIA_VISIBLE_DEVICES: '2,3'}",  # the request takes precedence
        DEVICES.format("count: 2"),
        DEVICES.format("count: all"),
        "gpus: all",
        "gpus: [{count: 2}]",
        "devices: [nvidia.com/gpu=0, nvidia.com/gpu=1]",
        "devices: [/dev/kfd, /dev/dri]",
    ],
)
def test_services_of_one_server_on_the_same_cards_are_one_fault(stated: str, tmp_path: Path) -> None:
    path = written(tmp_path, DOCKER_OF_FOUR.format([stated] * 4))
    (told,) = faults(path, Filled(gpu="h100-sxm"))
    assert ":3: " in told and "llm-0, llm-1, llm-2 and llm-3 would run on the same cards: 0, 1" in told


@pytest.mark.parametrize(
    "stated",
    [
        [f"runtime: nvidia, environment: {{NVIDIA_VISIBLE_DEVICES: '{n},{n + 1}'}}" for n in range(0, 8, 2)],
        [DEVICES.format("count: all") + f", environment: ['CUDA_VISIBLE_DEVICES={n},{n + 1}']" for n in range(0, 8, 2)],
        [DEVICES.format(f"device_ids: ['{n}', '{n + 1}']") + ", environment: {CUDA_VISIBLE_DEVICES: '0,1'}" for n in range(0, 8, 2)],
        [f"devices: [nvidia.com/gpu={n}, nvidia.com/gpu={n + 1}]" for n in range(0, 8, 2)],
        [f"devices: [/dev/kfd, /dev/dri], environment: {{HIP_VISIBLE_DEVICES: '{n},{n + 1}'}}" for n in range(0, 8, 2)],
    ],
)  # fmt: skip
def test_services_of_one_server_on_cards_of_their_own_are_replicas(stated: list[str], tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, DOCKER_OF_FOUR.format(stated)), Filled(gpu="h100-sxm")))
    assert (found.launched.replicas, found.launched.reserved_gpus, found.seen) == (4, 2, 2)


def test_services_that_extend_others_are_those_of_compose(tmp_path: Path) -> None:
    path = written(tmp_path, DOCKER_OF_FOUR.format(["gpus: all"] + ["extends: {service: llm-0}"] * 3))
    told = faults(path, Filled(gpu="h100-sxm"))
    assert len(told) == 3 and ":3: llm-1: extends another service; allowed: what `docker compose config`" in told[0]


def test_a_variable_numbers_the_cards_of_its_container(tmp_path: Path) -> None:
    stated = DEVICES.format("device_ids: ['2', '3']") + ", environment: {CUDA_VISIBLE_DEVICES: '2,3'}"
    text = f"services:\n  llm: {{image: '{IMAGE}', command: --model {MODEL} -tp 2, {stated}}}\n"
    (told,) = faults(written(tmp_path, text), Filled(gpu="h100-sxm"))
    assert "CUDA_VISIBLE_DEVICES: numbers card 2, and its container has 2, numbered from 0" in told


def test_ranks_that_share_nothing_need_cards_of_their_own() -> None:
    def reserved(cards: str) -> int | None:
        line = f"CUDA_VISIBLE_DEVICES={cards} vllm serve {MODEL} -tp 2 -dp 4"
        return only(existing(line, Filled(gpu="h100-sxm", replicas=1))).launched.reserved_gpus

    assert [reserved(",".join(map(str, range(count)))) for count in (4, 6, 8, 10)] == [1, 1, 2, 3]
    (told,) = faults(f"CUDA_VISIBLE_DEVICES=0 vllm serve {MODEL} -dp 2", Filled(gpu="h100-sxm", replicas=1))
    assert "starts 2 replicas, and has 1 GPU" in told


STARTS = "CUDA_VISIBLE_DEVICES={} vllm serve " + MODEL + " -tp 2 --port 800{} &\n"


def test_commands_of_a_script_that_start_the_same_are_replicas(tmp_path: Path) -> None:
    script = "".join(STARTS.format(f"{2 * n},{2 * n + 1}", n) for n in range(4))
    for head in ("# llmsize/gpu=h100-sxm\n", "# llmsize/name=chat llmsize/gpu=h100-sxm llmsize/replicas=4\n"):
        found = only(existing(written(tmp_path, head + script, "run.sh"), Filled()))
        assert (found.launched.gpu, found.launched.replicas, found.launched.reserved_gpus) == ("h100-sxm", 4, 2)
        assert found.assumed[-1] == "4 replicas: 4 commands start the same"
    (told,) = faults(written(tmp_path, head.replace("=4", "=3") + script, "run.sh"), Filled())
    assert "run.sh:1: replicas: is 3, and 4 commands start the same" in told
    same = "".join(STARTS.format("0,1", n) for n in range(4))
    (told,) = faults(written(tmp_path, same, "run.sh"), Filled(gpu="h100-sxm"))
    assert "the command of line 1, " in told and "would run on the same cards: 0, 1" in told


SERVICE = "  llm-{}: {{image: '{}', {}command: --model {} -tp 2, deploy: {{resources: {{reservations: {{devices: [{{capabilities: [gpu], device_ids: {}}}]}}}}}}}}\n"


@pytest.mark.parametrize(
    ("services", "told"),
    [
        ((("", "['0', '1']"), ("", "['2', '3']")), []),
        ((("", "['0', '1']"), ("", "['1', '2']")), [":3: device_ids: llm-1 and llm-2 would run on the same card: 1"]),
        ((("", "['0', '1']"), ("", "[0, 2]")), [":3: device_ids: llm-1 and llm-2 would run on the same card: 0"]),
        ((("", "['1', '1']"),), [":2: device_ids: llm-1 names card 1 twice"]),
        ((("profiles: [a], ", "['0', '1']"), ("profiles: [b], ", "['0', '1']")), []),
        (
            (("profiles: [a], ", "['0', '1']"), ("profiles: [a, b], ", "['0', '2']")),
            ["llm-1 and llm-2 would run on the same card: 0"],
        ),
        ((("", "['0', '1']"), ("profiles: [b], ", "['0', '2']")), ["llm-1 and llm-2 would run on the same card: 0"]),
        ((("", "['$A', '$A']"), ("", "['$A', '$B']")), []),
    ],
)
def test_a_card_of_compose_belongs_to_one_service(
    services: tuple[tuple[str, str], ...], told: list[str], tmp_path: Path
) -> None:
    each = (SERVICE.format(n, IMAGE, profile, MODEL, ids) for n, (profile, ids) in enumerate(services, 1))
    path = written(tmp_path, "services:\n" + "".join(each))
    if not told:
        (found,) = existing(path, Filled(gpu="h100-sxm"))
        assert (found.launched.replicas, found.launched.reserved_gpus) == (2, 2)
        return
    with pytest.raises(InputError) as caught:
        existing(path, Filled(gpu="h100-sxm"))
    assert len(caught.value.faults) == len(told)
    assert all(words in str(fault) for words, fault in zip(told, caught.value.faults, strict=True))


def test_pools_whose_connector_says_no_role_are_told_by_their_names(tmp_path: Path) -> None:
    pool = '{{replicas: {}, containers: [{{modelCommand: vllmServe, args: ["--model", "{}", "--kv-transfer-config", \'{{"kv_connector":"NixlConnector","kv_role":"kv_both"}}\', "--max-num-seqs", "{}"]}}]}}'
    both = f"decode: {pool.format(3, MODEL, 64)}\nprefill: {pool.format(1, MODEL, 8)}\n"
    found = existing(written(tmp_path, both), Filled(gpu="h100-sxm"))
    assert {(each.launched.role, each.launched.replicas) for each in found} == {("decode", 3), ("prefill", 1)}
    assert only(existing(written(tmp_path, both.splitlines()[0]), Filled(gpu="h100-sxm"))).launched.role == "whole"


LLM_SERVICE = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: chat}
spec:
  model: {uri: "hf://meta-llama/Llama-3.1-70B-Instruct", name: chat}
  replicas: 2
  parallelism: {tensor: 4}
  template:
    containers:
    - name: sidecar
      args: [--port, "1"]
    - name: main
      image: ghcr.io/llm-d/llm-d:v0.2.0
      env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 16384 --kv-cache-dtype fp8"}]
      resources: {limits: {nvidia.com/gpu: "4"}}
"""


def test_a_service_of_llm_d_says_its_flags_without_a_command(tmp_path: Path) -> None:
    on = Filled(gpu="h100-sxm")
    found = only(existing(written(tmp_path, LLM_SERVICE), on)).launched
    assert (found.model, found.replicas, found.reserved_gpus, found.role) == (MODEL, 2, 4, "whole")
    assert (found.serving.tp, found.serving.max_model_len, found.kv_precision) == (4, 16384, "fp8")
    bare = LLM_SERVICE[: LLM_SERVICE.index("  template:")]
    found = only(existing(written(tmp_path, bare), on)).launched
    assert (found.model, found.replicas, found.serving.tp, found.reserved_gpus) == (MODEL, 2, 4, None)
    pools = f"{bare}  prefill:\n    parallelism: {{tensor: 2}}\n"
    found_ = [each.launched for each in existing(written(tmp_path, pools), on)]
    assert {(each.role, each.replicas, each.serving.tp) for each in found_} == {("prefill", 1, 2), ("decode", 2, 4)}
    wide = (
        bare.replace("Llama-3.1-70B-Instruct", "x")
        .replace("meta-llama/x", "deepseek-ai/DeepSeek-R1")
        .replace("{tensor: 4}", "{data: 16, dataLocal: 8, expert: true}")
    )
    (found,) = existing(written(tmp_path, wide), on)
    assert (layout_of(found.launched).dp, layout_of(found.launched).ep, found.nodes) == (16, 16, 2)


def test_an_unknown_size_of_a_service_of_llm_d_is_a_fault(tmp_path: Path) -> None:
    path = written(tmp_path, LLM_SERVICE.replace("{tensor: 4}", "{tensorr: 4, dataRPCPort: 5555}"))
    with pytest.raises(InputError) as caught:
        existing(path, Filled(gpu="h100-sxm"))
    (fault,) = caught.value.faults
    assert (fault.line, fault.field, fault.nearest) == (7, "parallelism.tensorr", "tensor")


def test_all_that_is_missing_is_asked_for_in_one_message(tmp_path: Path) -> None:
    text = "image: {repository: vllm/vllm-openai, tag: v0.19.0}\nargs: [--tensor-parallel-size, '2']\n"
    with pytest.raises(InputError) as caught:
        existing(written(tmp_path, text), Filled())
    (fault,) = caught.value.faults
    assert "does not say the model, the GPU type, how many replicas run" in fault.message
    assert fault.allowed == "with -m MODEL, -g GPU (llmsize gpus), --replicas N"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: {{ .Values.x }}\nb: {{- if }}", "is a template"),
        ("a: 1", "holds no command of an engine"),
        ("deployments: [{model: m, servin: {}}]", "servin"),
        ("a: [", "is not valid YAML"),
        ("a: &x [*x]", "alias of what it stands in"),
    ],
)
def test_what_is_no_deployment_is_said(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        existing(written(tmp_path, text), Filled())
    assert words in str(caught.value)


def test_aliases_that_expand_to_billions_end_soon(tmp_path: Path) -> None:
    levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 25))
    with pytest.raises(InputError, match="more than 200,000 entries"):
        existing(written(tmp_path, f"a0: &a0 [x]\n{levels}"), Filled())
