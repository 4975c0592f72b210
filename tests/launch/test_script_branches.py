"""Scripts that a container mounts are followed as scripts are, with the arguments that they are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import IMAGE, faults, only, written

from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts
from sizing.launch.shell import script

ON = UserFacts(gpu="h100-sxm", replicas=1, engine="vllm:0.12.0")
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
        (f"{SERVE} -tp ${{1:-2}}", "command: [bash, /scripts/start.sh, '4']"),
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
    assert ":16: p: $TP is set in line 15 under a condition, which is not followed" in told


def test_a_script_that_does_not_end_is_told_where_it_starts_an_engine(tmp_path: Path) -> None:
    command = "command: [bash, /scripts/start.sh]"
    with_engine = written(tmp_path, pod(f'{SERVE} -tp 4\necho "open', command))
    (told,) = faults(with_engine, ON)
    assert told.endswith(":16: a quote is not closed")
    (told,) = faults(written(tmp_path, pod('echo "open', command)), ON)
    assert "no command of an engine" in told


def test_env_sets_variables_of_the_command_after_it() -> None:
    first, after = script("timeout 9 env -i GPUS=0,1 vllm serve m\nls", "k.sh").commands
    assert (first.variables, after.variables) == ({"GPUS": "0,1"}, {})
