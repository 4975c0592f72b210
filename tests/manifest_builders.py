"""Deployments as people write them: one server in every kind of manifest, and what is read of a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from sizing.launch.deployment import FileDeployment, existing
from sizing.launch.identity import UserFacts
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


def only(found: list[FileDeployment]) -> FileDeployment:
    (one,) = found
    return one


def faults(path: str, filled: UserFacts) -> list[str]:
    with pytest.raises(InputError) as caught:
        existing(path, filled)
    return [str(fault) for fault in caught.value.faults]
