"""What tests of `llmsize check` ask for: demands, files and models."""

from __future__ import annotations

from places import ROOT

CHAT = ("--demand", "chat")

FIXED = str(ROOT / "tests" / "golden" / "inputs" / "deploy.yaml")  # 5 replicas of TP2, more than enough

OWN = """\
deployments:
- name: chat
  model: meta-llama/Llama-3.1-70B-Instruct
  gpu: h100-sxm
  replicas: 5
  precision: fp8
  serving: {engine: vllm, tp: 2, max_model_len: 4743}
  reserved_gpus: 1
demand: chat
policy: {max_gpus: 8}
"""

LLAMA, BGE = "meta-llama/Llama-3.1-8B-Instruct", "BAAI/bge-large-en-v1.5"
