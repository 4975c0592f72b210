"""Configs of models as they are published, read, and what a test asks of the layers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

from sizing.catalog.config.model import read_model
from sizing.specs.errors import InputError
from sizing.specs.model import (
    Model,
    ModelFile,
)

CATALOGUE = sorted((ROOT / "workloads" / "models").glob("[!_]*.yaml"))

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "vocab_size": 32000,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def read(config: dict[str, Any], **more: Any) -> Model:
    return read_model(config, name="org/Model", source="a test", where="config.json", **more)


def faults(config: dict[str, Any], **more: Any) -> dict[str | None, str]:
    with pytest.raises(InputError) as caught:
        read(config, **more)
    assert all(fault.file == "config.json" for fault in caught.value.faults)
    return {fault.field: str(fault) for fault in caught.value.faults}


def catalogue(stem: str) -> Model:
    entry = profile(ROOT / "workloads" / "models" / f"{stem}.yaml")
    return read_model(entry.config, name=entry.name, source=entry.source, where=f"{stem}.yaml")


@cache
def profile(path: Path) -> ModelFile:
    return ModelFile(**yaml.safe_load(path.read_text(encoding="utf-8")))
