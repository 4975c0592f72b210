"""Scripts that a container mounts are followed, and of commands in branches of a condition only one runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import IMAGE, faults, only, written

from sizing.launch.existing import existing
from sizing.launch.identity import Filled
from sizing.launch.shell import script

ON = Filled(gpu="h100-sxm", replicas=1, engine="vllm:0.12.0")
SERVE = "vllm serve llama-3.1-8b"


def pod(script: str, command: str, mount: str = "/scripts") -> str:
    held = "".join(f"    {line}\n" for line in script.splitlines())
    return f"""\
kind: Pod
metadata: {{name: p}}
spec:
  volumes: [{{name: s, configMap: {{name: start}}}}]
  containers:
  - image: {IMAGE}
    {command}
    volumeMounts: [{{name: s, mountPath: {mount}}}]
---
kind: ConfigMap
metadata: {{name: start}}
data:
  other.sh: echo vllm serve nothing
  start.sh: |
{held}"""


@pytest.mark.parametrize(
    ("script", "command"),
    [
        (f"TP=4\n{SERVE} -tp $TP", "command: [/bin/bash, /scripts/start.sh]"),
        (f"TP=4\nexec {SERVE} -tp $TP", "command: [bash, -c, 'exec /scripts/start.sh']"),
        (f'exec {SERVE} "$@"', "command: [sh, -ex, /scripts/start.sh]\n    args: [-tp, '4']"),
        (f"{SERVE} -tp $TP", "command: [/scripts/start.sh]\n    env: [{name: TP, value: '4'}]"),
        ('vllm serve "$@"', "command: [bash, -c, '/scripts/start.sh llama-3.1-8b -tp 4']"),
        (
            f'if [ "$LWS_WORKER_INDEX" = 0 ]; then {SERVE} -tp 4; else {SERVE} --headless; fi',
            "command: [bash, /scripts/start.sh]",
        ),
    ],
)
def test_a_script_of_a_config_map_is_followed(script: str, command: str, tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, pod(script, command)), ON._replace(engine=None)))
    assert found.launched.serving.tp == 4 and found.launched.model == "llama-3.1-8b"


def test_a_file_of_settings_is_no_script(tmp_path: Path) -> None:
    text = pod("tensor-parallel-size: 4 # it's one", "args: [--model, llama-3.1-8b, --config, /etc/start.sh]", "/etc")
    assert only(existing(written(tmp_path, text), ON._replace(engine=None))).launched.serving.tp == 4


def test_a_script_of_a_container_with_several_engines_is_told(tmp_path: Path) -> None:
    text = pod(f"{SERVE} --port 1 &\n{SERVE} --port 2 &\nwait", "command: [bash, /scripts/start.sh]")
    (told,) = faults(written(tmp_path, text), ON._replace(engine=None))
    assert "several commands of engines, of lines 15, 16" in told
    branch = pod(
        f'if [ "$ROLE" = big ]; then TP=4; else TP=2; fi\n{SERVE} -tp $TP', "command: [bash, /scripts/start.sh]"
    )
    (told,) = faults(written(tmp_path, branch), ON._replace(engine=None))
    assert "a condition decides what the command of line 16 starts" in told


@pytest.mark.parametrize(
    "script",
    [
        f'if [ "$BIG" = 1 ]; then\n{SERVE} -tp 4\nelse\n{SERVE}\nfi',
        f'case "$SIZE" in\n  small) {SERVE} ;;\n  *)\n{SERVE} -tp 4;;\nesac',
        f'if [ "$BIG" = 1 ]; then\nexec {SERVE} -tp 4\nfi\n{SERVE}',
    ],
)
def test_branches_that_start_something_else_are_a_fault(script: str, tmp_path: Path) -> None:
    (told,) = faults(written(tmp_path, script, "run.sh"), ON)
    lines = [at for at, line in enumerate(script.splitlines(), 1) if SERVE in line]
    assert f"whether the command of line {lines[0]} or {lines[1]} runs" in told


@pytest.mark.parametrize(
    ("script", "deployments"),
    [
        (f'if [ -n "$KEY" ]; then {SERVE} --api-key $KEY; else {SERVE}; fi', 1),
        (f"if true; then {SERVE} -tp 2; fi\nif true; then {SERVE} -tp 4; fi", 2),
        (
            "case $ROLE in\np) "
            + f" ;;\nd) {SERVE} --kv-transfer-config ".join(
                [
                    f'{SERVE} --kv-transfer-config \'{{"kv_connector":"NixlConnector","kv_role":"kv_producer"}}\'',
                    '\'{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}\'',
                ]
            )
            + ";;\nesac",
            2,
        ),
    ],
)
def test_branches_that_start_the_same_count_once(script: str, deployments: int, tmp_path: Path) -> None:
    assert len(existing(written(tmp_path, script, "run.sh"), ON)) == deployments


def test_a_script_that_does_not_end_is_told_where_it_starts_an_engine(tmp_path: Path) -> None:
    command = "command: [bash, /scripts/start.sh]"
    with_engine = written(tmp_path, pod(f'{SERVE} -tp 4\necho "open', command))
    (told,) = faults(with_engine, ON)
    assert told.endswith(":16: a quote is not closed")
    (told,) = faults(written(tmp_path, pod('echo "open', command)), ON)
    assert "no command of an engine" in told


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (f'if [ "$X" = 1 ]; then TP=2; else TP=4; fi\n{SERVE} -tp $TP', 2),
        (f'if [ "$X" = 1 ]; then\nARGS="-tp 2"\nelse\nARGS="-tp 4"\nfi\n{SERVE} $ARGS', 6),
        (f'case "$X" in\na) TP=2;;\n*) TP=4;;\nesac\n{SERVE} -tp $TP', 5),
        (f'[ "$X" = 1 ] && TP=2 || TP=4\n{SERVE} -tp $TP', 2),
        (f"if true; then N=1; else N=2; fi\n{SERVE} -tp $((N*2))", 2),
    ],
)
def test_branches_that_set_other_values_are_a_fault(script: str, line: int, tmp_path: Path) -> None:
    (told,) = faults(written(tmp_path, script, "run.sh"), ON)
    assert f"decides what the command of line {line} starts" in told


@pytest.mark.parametrize(
    ("script", "tp"),
    [
        (f"if true; then LOG=a; else LOG=b; fi\n{SERVE} -tp 2 --log-config-file $LOG", 2),
        (f"if true; then TP=1; else TP=2; fi\nTP=4\n{SERVE} -tp $TP", 4),
        (f"TP=1\nif true; then TP=2; fi\n{SERVE} -tp $TP", 2),
        (f"(TP=2; export TP)\nTP=${{TP:-4}}\n{SERVE} -tp $TP", 4),
    ],
)
def test_branches_that_change_nothing_are_no_fault_and_a_subshell_keeps_its_variables(
    script: str, tp: int, tmp_path: Path
) -> None:
    assert only(existing(written(tmp_path, script, "run.sh"), ON)).launched.serving.tp == tp


@pytest.mark.parametrize(
    ("text", "tp"),
    [
        ("TP=4\nsetup() { TP=8; }", "4"),  # nothing calls it
        ("TP=4\nsetup()\n{\n  TP=8\n}\nsetup", "8"),
        ("TP=4\nfunction setup {\n  local TP=8\n}\nsetup", "4"),
    ],
)
def test_a_function_sets_variables_where_it_is_called(text: str, tp: str) -> None:
    (command,) = script(f"{text}\nvllm serve m -tp $TP", "k.sh").commands
    assert command.variables["TP"] == tp


def test_commands_of_a_function_run_where_it_is_called_with_its_arguments() -> None:
    (command,) = script('main() {\n  vllm serve m "$@"\n}\nother() { vllm serve n; }\nmain -tp 2', "k.sh").commands
    assert [word.text for word in command.words] == ["vllm", "serve", "m", "-tp", "2"]


def test_env_sets_variables_of_the_command_after_it() -> None:
    first, after = script("timeout 9 env -i GPUS=0,1 vllm serve m\nls", "k.sh").commands
    assert (first.variables, after.variables) == ({"GPUS": "0,1"}, {})
