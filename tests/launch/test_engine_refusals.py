"""What an engine, Kubernetes or Compose would refuse is a fault that says what works, one fault a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import IMAGE, MODEL, faults, only, written

from sizing.launch.check import check
from sizing.launch.existing import existing
from sizing.launch.identity import Filled

SERVE = f"vllm serve {MODEL} "
ON = Filled(gpu="h100-sxm", replicas=1, engine="vllm:0.12.0")


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
    on = Filled(gpu="h100-sxm")
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
    (found,) = check(written(tmp_path, text), demand="chat", filled=Filled(gpu="h100-sxm"), simulated=False)
    failed = {each.rule: each.message for each in found.findings if each.level == "error"}
    assert failed["layout"] == "64 attention heads are not divisible by TP3" and "reserve 2" in failed["gpus"]


def test_scripts_run_one_another(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f'exec {SERVE} "$@"\n')
    found = only(existing(written(tmp_path, "#!/bin/sh\n./serve.sh -tp 2\n", "run.sh"), ON))
    assert (found.launched.serving.tp, found.line("command")) == (2, 2)
    docker = f"docker run -v $PWD/vllm:/vllm -v vllm:/data --name vllm --gpus all {IMAGE} "
    (told,) = faults(written(tmp_path, f"{docker} bash /other.sh", "run.sh"), ON._replace(engine=None))
    assert "runs /other.sh, which is not here" in told
    found = only(existing(written(tmp_path, f"{docker} --model {MODEL}", "run.sh"), ON._replace(engine=None)))
    assert found.launched.serving.engine == "vllm:0.19.0"


def test_a_key_of_a_chart_that_is_false_is_told(tmp_path: Path) -> None:
    text = f"modelSpec: [{{name: a, modelURL: {MODEL}, replicaCount: 1, vllmConfig: {{enablePrefixCaching: false}}}}]"
    found = only(existing(written(tmp_path, text), ON._replace(replicas=None)))
    assert any(note.startswith("enablePrefixCaching: false (line 1) is taken as no flag") for note in found.assumed)


@pytest.mark.parametrize(("flag", "from_memory"), [("-O0", True), ("-O3", False), ("--enforce-eager", False)])
def test_what_is_known_from_memory_alone_is_told(flag: str, from_memory: bool) -> None:
    found = only(existing(f"{SERVE} -tp 4 {flag}", ON))
    assert any("from memory" in note for note in found.assumed) is from_memory
