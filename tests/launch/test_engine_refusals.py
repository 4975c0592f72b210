"""What an engine, Kubernetes or Compose would refuse is a fault that says what works, one fault a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import IMAGE, MODEL, faults, only, written

from sizing.launch.check import check
from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts

SERVE = f"vllm serve {MODEL} "
ON = UserFacts(gpu="h100-sxm", replicas=1, engine="vllm:0.12.0")


@pytest.mark.parametrize(
    ("flags", "works"),
    [
        ("--enforce-eager=false", "--no-enforce-eager"),
        ("--enforce-eager True --max-num-seqs 8", "--enforce-eager"),
        ("--trust-remote-code=true", "--trust-remote-code"),
        ("--enable-expert-parallel=False", "--no-enable-expert-parallel"),
        ("--enable-chunked-prefill=true", "--enable-chunked-prefill"),
    ],
)
def test_a_switch_takes_no_value(flags: str, works: str) -> None:
    (told,) = faults(SERVE + flags, ON)
    assert told.endswith(f"is a switch, which takes no value; use {works}")


def test_before_0_9_a_switch_of_chunks_has_a_value() -> None:
    old = ON._replace(engine="vllm:0.8.5")
    assert existing(f"{SERVE} --enable-chunked-prefill=True", old)
    (told,) = faults(f"{SERVE} --enable-chunked-prefill False", old)
    assert "changes what is predicted" in told
    (told,) = faults(f"{SERVE} --enforce-eager=false", old)
    assert told.endswith("leave it out")


@pytest.mark.parametrize("length", ["auto", "-1"])
def test_the_longest_length_that_fits_is_a_word_of_later_versions(length: str) -> None:
    command = f"{SERVE} -tp 4 --max-model-len {length}"
    (told,) = faults(command, ON._replace(engine="vllm:0.13.0"))
    assert f"{length} from 0.14.0" in told
    assert only(existing(command, ON._replace(engine="vllm:0.14.0"))).launched.serving.max_model_len is None


def test_sglang_without_chunks_is_not_predicted() -> None:
    on = ON._replace(engine=None)
    (told,) = faults(f"python -m sglang.launch_server --model-path {MODEL} --chunked-prefill-size -1", on)
    assert "switches chunked prefill off, which is not predicted" in told


def pod(resources: str) -> str:
    listed = SERVE.split()
    return f"""\
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  containers:
  - image: {IMAGE}
    command: {listed}
    args: [-tp, '2']
    resources: {resources}
"""


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ("{requests: {nvidia.com/gpu: 2}}", "no limit"),
        ("{requests: {nvidia.com/gpu: 2}, limits: {nvidia.com/gpu: 4}}", "a limit of 4"),
    ],
)
def test_gpus_need_an_equal_limit(resources: str, said: str, tmp_path: Path) -> None:
    on = UserFacts(gpu="h100-sxm")
    (told,) = faults(written(tmp_path, pod(resources)), on)
    assert f":9: nvidia.com/gpu: requests 2 with {said}" in told and "limits: {nvidia.com/gpu: 2}" in told
    same = "{requests: {nvidia.com/gpu: 2}, limits: {nvidia.com/gpu: '2'}}"
    assert only(existing(written(tmp_path, pod(same)), on)).launched.reserved_gpus == 2


@pytest.mark.parametrize(
    ("text", "near"),
    [
        (f"modelSpec: [{{name: a, modelURL: {MODEL}, replicaCount: 1, vllmConfig: {{maxModelLn: 4743}}}}]", "--max-model-len"),
        (f"a: {{model_loading_config: {{model_id: {MODEL}}}, engine_kwargs: {{kv_cache_dtipe: fp8}}}}", "--kv-cache-dtype"),
        (f"vllm serve --max-num-sek 4 {MODEL}", "--max-num-seqs"),
    ],
)  # fmt: skip
def test_an_unknown_flag_is_one_fault(text: str, near: str, tmp_path: Path) -> None:
    name = "run.sh" if text.startswith("vllm") else "deploy.yaml"
    (told,) = faults(written(tmp_path, text, name), ON)
    assert told.endswith(f"did you mean {near}?")


@pytest.mark.parametrize(
    "script",
    [
        f"FP=1\n{SERVE} ${{FP:+-tp 2}} ${{NO:+-tp 4}}",
        f": ${{TP:=2}}\n{SERVE} -tp ${{TP:?how many}}",
        f"MODEL={MODEL}\nvllm serve $MODEL --served-model-name ${{MODEL##*/}} -tp 2 # of two",
        f"TP=2 # a | b\n{SERVE} -tp $TP",
        f"TP=2\nif (( TP == 8 )); then echo wide; fi\n{SERVE} -tp $TP",
        f'CMD="{SERVE}"\nCMD+=" -tp 2"\n$CMD',
        f"bash -c '\n  # it\n  {SERVE} \\\n    -tp 2\n'\n",
        f'bash -c "{SERVE} \\\n  -tp 2"',
    ],
)
def test_a_script_is_expanded_as_a_shell_does_it(script: str, tmp_path: Path) -> None:
    assert only(existing(written(tmp_path, script, "run.sh"), ON)).launched.serving.tp == 2


@pytest.mark.parametrize(
    "volume",
    [
        "./scripts:/opt/run:ro",
        "{type: bind, source: ./scripts, target: /opt/run}",
        "./scripts/start.sh:/opt/run/start.sh",
    ],
)
def test_a_script_that_compose_mounts_is_followed(volume: str, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    text = f"services:\n  a:\n    image: {IMAGE}\n    entrypoint: [bash, /opt/run/start.sh]\n    volumes: ['{volume}']\n    gpus: [{{count: 2}}]\n"
    text = text.replace("'{", "{").replace("}'", "}")
    on = ON._replace(engine=None, replicas=None)
    (told,) = faults(written(tmp_path, text, "c.yaml"), on)
    assert ":4: a: runs /opt/run/start.sh, which is not here" in told
    (tmp_path / "scripts" / "start.sh").write_text(f"# one\nexec {SERVE} -tp 2\n")
    found = only(existing(written(tmp_path, text, "c.yaml"), on))
    assert (found.launched.serving.tp, found.line("tp")) == (2, 4)


def test_a_layout_that_the_heads_refuse_is_told_beside_missing_gpus(tmp_path: Path) -> None:
    text = pod("{limits: {nvidia.com/gpu: 2}}").replace("'2'", "'3'")
    (found,) = check(written(tmp_path, text), demand="chat", filled=UserFacts(gpu="h100-sxm"), simulated=False)
    failed = {each.rule: each.message for each in found.findings if each.level == "error"}
    assert failed["layout"] == "64 attention heads are not divisible by TP3" and "reserve 2" in failed["gpus"]


def test_scripts_run_one_another(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f'exec {SERVE} "$@"\n')
    found = only(existing(written(tmp_path, "#!/bin/sh\n./serve.sh -tp 2\n", "run.sh"), ON))
    assert (found.launched.serving.tp, found.line("command")) == (2, 2)
    docker = f"docker run -v $PWD/vllm:/vllm -v vllm:/data --name vllm --gpus all {IMAGE}"
    found = only(existing(written(tmp_path, f"{docker} --model {MODEL}", "run.sh"), ON._replace(engine=None)))
    assert found.launched.serving.engine == "vllm:0.19.0"


def test_what_docker_runs_that_is_not_followed_is_told(tmp_path: Path) -> None:
    on = ON._replace(engine=None)
    run = f"docker run --gpus all -v $PWD/start:/run ENTRY {IMAGE} "
    for words, told in (
        (
            run.replace("ENTRY", "--entrypoint bash") + "/run/start.sh",
            "runs /run/start.sh, which `docker run` mounts from $PWD/start",
        ),
        (run.replace("ENTRY", "--entrypoint bash") + "/other.sh", "runs /other.sh, which is not here"),
        (
            run.replace("ENTRY", "") + SERVE,
            "1: vllm: is an argument of the server that vllm/vllm-openai:v0.19.0 starts itself",
        ),
    ):
        (fault,) = faults(written(tmp_path, words, "run.sh"), on)
        assert told in fault
    entered = run.replace("ENTRY", "--entrypoint bash") + f"-c '{SERVE} -tp 2'"
    assert only(existing(written(tmp_path, entered, "run.sh"), on)).launched.serving.tp == 2


def test_two_containers_of_a_script_on_all_cards_share_the_first_ones(tmp_path: Path) -> None:
    run = f"docker run -d --gpus CARDS {IMAGE} --model {MODEL} -tp 2\n"
    for cards in ("all", "2"):
        (told,) = faults(written(tmp_path, run.replace("CARDS", cards) * 2, "run.sh"), ON._replace(engine=None))
        assert "the command of line 1 and the command of line 2 would run on the same cards: 0, 1" in told
    apart = "".join(run.replace("CARDS", f"'\"device={cards}\"'") for cards in ("0,1", "2,3"))
    found = only(existing(written(tmp_path, apart, "run.sh"), ON._replace(engine=None, replicas=None)))
    assert found.launched.replicas == 2


@pytest.mark.parametrize(
    "how", ["VLLM_USE_V1=0 SERVE", "export VLLM_USE_V1=0\nSERVE", "docker run -e VLLM_USE_V1=0 IMAGE -tp 2"]
)
def test_the_engine_of_older_versions_is_refused(how: str, tmp_path: Path) -> None:
    text = how.replace("SERVE", f"{SERVE} -tp 2").replace("IMAGE", f"vllm/vllm-openai:v0.9.0 --model {MODEL}")
    (told,) = faults(written(tmp_path, text, "run.sh"), ON._replace(engine=None if "docker" in how else "vllm:0.9.0"))
    assert "VLLM_USE_V1: 0 starts the V0 engine, which is not predicted" in told


def test_two_engines_of_a_pod_are_replicas_with_ports_of_their_own(tmp_path: Path) -> None:
    one = f"{{image: {IMAGE}, args: [--model, {MODEL}, -tp, '2'PORT], resources: {{limits: {{nvidia.com/gpu: 2}}}}}}"
    text = f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: a}}\nspec:\n  replicas: 3\n  template:\n    spec:\n      containers:\n      - {one}\n      - {one}\n"
    on = UserFacts(gpu="h100-sxm")
    (told,) = faults(written(tmp_path, text.replace("PORT", "")), on)
    assert ":10: a: listens on port 8000, as the engine of line 9 of the same pod does" in told
    apart = text.replace("PORT", "", 1).replace("PORT", ", --port, '8001'")
    found = only(existing(written(tmp_path, apart), on))
    assert (found.launched.replicas, found.launched.reserved_gpus) == (6, 2)
    assert "6 replicas: 2 containers start the same" in found.assumed


def test_bundles_of_workers_of_ray_serve_hold_one_gpu(tmp_path: Path) -> None:
    text = f"a: {{model_loading_config: {{model_id: {MODEL}}}, engine_kwargs: {{tensor_parallel_size: 2}}, placement_group_config: {{bundle_per_worker: {{GPU: SIZE}}}}}}"
    assert only(existing(written(tmp_path, text.replace("SIZE", "1")), ON)).launched.serving.tp == 2
    (told,) = faults(written(tmp_path, text.replace("SIZE", "2")), ON)
    assert ":1: bundle_per_worker: is 2 GPUs for each worker, which are not counted" in told


@pytest.mark.parametrize(
    ("selector", "gpu"),
    [
        ("node.kubernetes.io/instance-type: Standard_ND96isr_H100_v5", "h100-sxm"),
        ("node.kubernetes.io/instance-type: Standard_NC40ads_H100_v5", "h100-nvl"),
        ("node.kubernetes.io/instance-type: a3-megagpu-8g", "h100-sxm"),
        ("cloud.google.com/gke-accelerator: nvidia-h100-mega-80gb", "h100-sxm"),
        ("cloud.google.com/gke-accelerator: nvidia-rtx-pro-6000", "rtx-pro-6000-server"),
        ("gpu.nvidia.com/model: H200", "h200-sxm"),
    ],
)
def test_clouds_name_their_gpus(selector: str, gpu: str, tmp_path: Path) -> None:
    text = pod("{limits: {nvidia.com/gpu: 2}}").replace("spec:\n", f"spec:\n  nodeSelector: {{{selector}}}\n")
    assert only(existing(written(tmp_path, text), UserFacts())).launched.gpu == gpu


def test_a_chart_of_llm_d_names_its_gpu_and_needs_no_flags(tmp_path: Path) -> None:
    text = "modelArtifacts: {uri: 'hf://meta-llama/Llama-3.1-8B-Instruct'}\ndecode:\n  replicas: 2\n"
    text += "  acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-H100-80GB-HBM3]}\n"
    text += "  containers: [{name: vllm, image: 'ghcr.io/llm-d/llm-d:v0.2.0', modelCommand: vllmServe}]\n"
    launched = only(existing(written(tmp_path, text), UserFacts())).launched
    assert (launched.gpu, launched.replicas) == ("h100-sxm", 2)


def test_a_key_of_a_chart_that_is_false_is_told(tmp_path: Path) -> None:
    text = f"modelSpec: [{{name: a, modelURL: {MODEL}, replicaCount: 1, vllmConfig: {{enablePrefixCaching: false}}}}]"
    found = only(existing(written(tmp_path, text), ON._replace(replicas=None)))
    assert any(note.startswith("enablePrefixCaching: false (line 1) is taken as no flag") for note in found.assumed)


@pytest.mark.parametrize(("flag", "from_memory"), [("-O0", True), ("-O3", False), ("--enforce-eager", False)])
def test_what_is_known_from_memory_alone_is_told(flag: str, from_memory: bool) -> None:
    found = only(existing(f"{SERVE} -tp 4 {flag}", ON))
    assert any("from memory" in note for note in found.assumed) is from_memory
