"""Manifests and command lines that nobody meant: a fault or a deployment, never a traceback, never a hang."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sizing.catalog.profiles import launches
from sizing.catalog.shelf import load
from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts
from sizing.launch.shell import script
from sizing.specs.errors import InputError

FILLED = UserFacts(model="llama-3.1-8b", gpu="h100-sxm", replicas=1)
FLAGS = [
    flag for name in launches().ids for row in load(launches(), name).spec.flags for flag in (*row.flags, *row.off)
]
STARTS = ["vllm serve", "python3 -m sglang.launch_server", "trtllm-serve", "sglang serve"]
VALUES = st.one_of(
    st.integers(-5, 10**20).map(str), st.sampled_from(["auto", "fp8", "{}", '{"method": []}', "{", "k.yaml", "0.9", "1e999", "nan", "$X", "--", ""]),
    st.text(string.printable, max_size=12),
)  # fmt: skip
WORDS = st.lists(
    st.one_of(st.sampled_from(FLAGS), VALUES, st.tuples(st.sampled_from(FLAGS), VALUES).map("=".join)), max_size=8
)
KEYS = st.sampled_from([
    "kind", "metadata", "name", "spec", "replicas", "template", "containers", "args", "command", "image", "resources", "limits",
    "nvidia.com/gpu", "gpu", "nodeSelector", "nvidia.com/gpu.product", "env", "services", "deploy", "vllmConfig", "parallelism",
    "tensor", "modelSpec", "configs", "content", "data", "deployments", "model", "labels", "affinity", "devices", "<<",
])  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**9), st.floats(), st.sampled_from(["vllm serve m", "Deployment", "vllm/vllm-openai:v0.19.0", "vllm", "serve", "-tp", "2"]),
    st.text(max_size=8),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=25,
)
BOUNDED = settings(
    max_examples=60, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def read(path: str) -> None:
    try:
        existing(path, FILLED)
    except InputError as error:
        assert all(fault.message for fault in error.faults)


@BOUNDED
@given(start=st.sampled_from(STARTS), words=WORDS)
def test_command_lines(start: str, words: list[str]) -> None:
    read(f"{start} llama-3.1-8b {' '.join(words)}")


@BOUNDED
@given(tree=TREES)
def test_manifests(tree: Any, tmp_path: Path) -> None:
    path = tmp_path / "k.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    read(str(path))


@BOUNDED
@given(words=WORDS, tree=TREES)
def test_flags_in_manifests(words: list[str], tree: Any, tmp_path: Path) -> None:
    content = {
        "kind": "Deployment",
        "spec": {
            "template": {
                "spec": {
                    "containers": [{"image": "vllm/vllm-openai:v0.19.0", "args": words, "env": tree, "resources": tree}]
                }
            }
        },
    }
    path = tmp_path / "k.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    read(str(path))


@BOUNDED
@given(text=st.text(alphabet=st.sampled_from("vllm serve-tp2\\\n'\"<YAML>$(){}|&;#=: "), max_size=80))
def test_scripts(text: str, tmp_path: Path) -> None:
    path = tmp_path / "k.sh"
    path.write_text(f"vllm serve m {text}", encoding="utf-8")
    read(str(path))


@pytest.mark.parametrize("suffix", [".yaml", ".sh", ""])
def test_what_is_no_text(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"k{suffix}"
    path.write_bytes(b"\xff\xfe\x00vllm serve")
    with pytest.raises(InputError, match="UTF-8"):
        existing(str(path), FILLED)


def test_endless_commands_end_soon(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="more than 10,000 words"):
        existing("vllm serve m " + "-x " * 30_000, FILLED)
    path = tmp_path / "k.yaml"
    path.write_text(
        "\n".join(f"c{n}: {{args: [vllm, serve, m], nodeSelector: {{a: b}}}}" for n in range(2_000)), encoding="utf-8"
    )
    with pytest.raises(InputError, match="holds 2,000 commands; allowed: at most 1,024"):
        existing(str(path), FILLED)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x" * 100_001, "a script of more than 100,000 characters"),
        ("\n".join(f"V{number}=1" for number in range(502)), "more than 500 variables"),
        ("if a; then\n" * 66, "more than 64 conditions inside one another"),
        ("A='-a " + "-b " * 5_000 + "'\n" + "x $A\n" * 25, "all have more than 100,000"),
    ],
)
def test_scripts_beyond_what_a_person_writes_are_one_fault(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as found:
        script(text, "k.sh")
    assert len(found.value.faults) == 1


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ("{image: a, args: [x]}, ", "a pod of more than 100 containers"),
        ("", "a container with more than 100 mounts"),
    ],
)
def test_pods_beyond_what_kubernetes_runs_are_one_fault(entries: str, told: str, tmp_path: Path) -> None:
    mounts = "{name: v, mountPath: /a}, " * 101
    engine = (
        f"{{image: 'vllm/vllm-openai:v0.19.0', args: [--model, m], volumeMounts: [{mounts if not entries else ''}]}}"
    )
    path = tmp_path / "k.yaml"
    path.write_text(f"kind: Pod\nspec:\n  containers: [{entries * 101}{engine}]\n", encoding="utf-8")
    with pytest.raises(InputError, match=told):
        existing(str(path), FILLED)
