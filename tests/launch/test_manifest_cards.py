"""Cards that a manifest reserves: whole ones, slices and shares, and services that divide a server among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import IMAGE, MODEL, NODE, faults, only, written

from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts
from sizing.specs.errors import InputError


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
    assert only(existing(line, UserFacts(gpu="h100-sxm", replicas=1))).launched.reserved_gpus == gpus


POD_OF_SLICE = f"kind: Pod\nspec:\n  {NODE}\n  containers:\n  - image: {IMAGE}\n    args: [--model, llama-3.1-8b]\n    resources: {{limits: {{nvidia.com/mig-3g.40gb: 1}}}}\n"


def test_a_pod_may_ask_for_a_slice_of_a_card(tmp_path: Path) -> None:
    pod = POD_OF_SLICE
    found = only(existing(written(tmp_path, pod), UserFacts())).launched
    assert (found.gpu, found.reserved_gpus) == ("h100-sxm:3g.40gb", 1)
    bare = written(tmp_path, pod.replace(f"  {NODE}\n", ""))
    assert only(existing(bare, UserFacts(gpu="a100-sxm-80gb"))).launched.gpu == "a100-sxm-80gb:3g.40gb"
    assert only(existing(bare, UserFacts(gpu="h100-sxm:3g.40gb"))).launched.gpu == "h100-sxm:3g.40gb"
    (told,) = faults(bare, UserFacts(gpu="h100-sxm:1g.10gb"))
    assert "gpu: is h100-sxm:3g.40gb here, and --gpu says h100-sxm:1g.10gb" in told
    (told,) = faults(bare, UserFacts(gpu="l40s"))
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
    told = faults(written(tmp_path, pod), UserFacts(gpu="h100-sxm:3g.40gb"))
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
    found = only(existing(written(tmp_path, pod), UserFacts())).launched
    assert (found.gpu, found.reserved_gpus) == ("h100-sxm:3g.40gb", 1)


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
    (told,) = faults(path, UserFacts(gpu="h100-sxm"))
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
    found = only(existing(written(tmp_path, DOCKER_OF_FOUR.format(stated)), UserFacts(gpu="h100-sxm")))
    assert (found.launched.replicas, found.launched.reserved_gpus, found.seen) == (4, 2, 2)


def test_services_that_extend_others_are_those_of_compose(tmp_path: Path) -> None:
    path = written(tmp_path, DOCKER_OF_FOUR.format(["gpus: all"] + ["extends: {service: llm-0}"] * 3))
    told = faults(path, UserFacts(gpu="h100-sxm"))
    assert len(told) == 3 and ":3: llm-1: extends another service; allowed: what `docker compose config`" in told[0]


def test_files_that_compose_includes_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, "include: [other.yaml]\n" + DOCKER_OF_FOUR.format(["gpus: all"] * 4))
    (told,) = faults(path, UserFacts(gpu="h100-sxm"))
    assert ":1: include: adds other files, which are not read" in told


def test_a_variable_numbers_the_cards_of_its_container(tmp_path: Path) -> None:
    stated = DEVICES.format("device_ids: ['2', '3']") + ", environment: {CUDA_VISIBLE_DEVICES: '2,3'}"
    text = f"services:\n  llm: {{image: '{IMAGE}', command: --model {MODEL} -tp 2, {stated}}}\n"
    (told,) = faults(written(tmp_path, text), UserFacts(gpu="h100-sxm"))
    assert "CUDA_VISIBLE_DEVICES: numbers card 2, and its container has 2, numbered from 0" in told


def test_ranks_that_share_nothing_need_cards_of_their_own() -> None:
    def reserved(cards: str) -> int | None:
        line = f"CUDA_VISIBLE_DEVICES={cards} vllm serve {MODEL} -tp 2 -dp 4"
        return only(existing(line, UserFacts(gpu="h100-sxm", replicas=1))).launched.reserved_gpus

    assert [reserved(",".join(map(str, range(count)))) for count in (4, 6, 8, 10)] == [1, 1, 2, 3]
    (told,) = faults(f"CUDA_VISIBLE_DEVICES=0 vllm serve {MODEL} -dp 2", UserFacts(gpu="h100-sxm", replicas=1))
    assert "starts 2 replicas, and has 1 GPU" in told


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
        (found,) = existing(path, UserFacts(gpu="h100-sxm"))
        assert (found.launched.replicas, found.launched.reserved_gpus) == (2, 2)
        apart = any(
            each.startswith("llm-1 and llm-2 have profiles that differ, and the same card") for each in found.assumed
        )
        assert apart == ("profiles" in services[0][0])
        return
    with pytest.raises(InputError) as caught:
        existing(path, UserFacts(gpu="h100-sxm"))
    assert len(caught.value.faults) == len(told)
    assert all(words in str(fault) for words, fault in zip(told, caught.value.faults, strict=True))
