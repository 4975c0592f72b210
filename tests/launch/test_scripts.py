"""Variables, arrays, conditions and comments of a shell script count as in bash, or are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import faults, only, written

from sizing.launch.deployment import FileDeployment, existing
from sizing.launch.identity import UserFacts

ON_ONE = UserFacts(gpu="h100-sxm", replicas=1, engine="vllm:0.12.0")
SERVE = "vllm serve llama-3.1-8b"


def read(script: str, folder: Path, asked: UserFacts = ON_ONE) -> FileDeployment:
    return only(existing(written(folder, f"{script}\n", "run.sh"), asked))


@pytest.mark.parametrize(
    "script",
    [
        f'X="--max-model-len 8192"\nX+=" -tp 4"\n{SERVE} $X',
        f"TP=\nTP+=4\n{SERVE} -tp $TP --max-model-len 8192",
        f'N=81\nexport N+=92\nX=" -tp 4"\n{SERVE} $X --max-model-len $N',
        'ARGS=(\n  llama-3.1-8b # the model (8B)\n  # --max-model-len 4096 (old)\n  -tp 4\n  --max-model-len 8192\n)\nvllm serve "${ARGS[@]}"',
        f'ARGS=( --served-model-name "my (big)\nmodel )" \\\n -tp 4\n --port $(cat port.txt)\n --max-model-len 8192)\n{SERVE} "${{ARGS[@]}}"',
        'ARGS=(llama-3.1-8b -tp 4); ARGS+=(--max-model-len 8192); vllm serve "${ARGS[@]}"',
        f"declare -a ARGS=()\nARGS+=(-tp 4)\nreadonly N=8192\n{SERVE} ${{ARGS[@]}} --max-model-len $N",
        f'TP=\n{SERVE} -tp ${{TP:-4}} --max-model-len "${{LEN:-${{N:-8192}}}}"',
        f"declare -i TP=4 N=8192\nlocal TP N\n{SERVE} -tp $TP --max-model-len $N",
        f"TP=4\ncat > f.yaml <<EOF\ntensor-parallel-size: $TP\nmax-model-len: ${{N:-8192}}\nEOF\n{SERVE} --config f.yaml",
        f'echo "vllm serve llama-3.1-70b -tp 8"\n{SERVE} -tp 4 --max-model-len 8192',
    ],
)
def test_variables_hold_what_they_hold_in_bash(script: str, tmp_path: Path) -> None:
    found = read(script, tmp_path)
    assert (found.launched.serving.tp, found.launched.serving.max_model_len) == (4, 8192) and not found.assumed


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (f'ARGS=(-tp 2)\nif [ "$BIG" = 1 ]; then ARGS=(-tp 4); fi\n{SERVE} "${{ARGS[@]}}"', "3: $ARGS is set in line 2 under a condition"),
        (f'ARGS=(-tp 2)\nif a; then ARGS+=(-dp 2); fi\nARGS+=(--port 1)\n{SERVE} "${{ARGS[@]}}"', "4: $ARGS is set in line 2 under a condition"),
        (f'TP=2\nif [ "$BIG" = 1 ]\nthen\n  TP=4\nfi\nARGS="-tp $TP"\n{SERVE} $ARGS', "7: $TP is set in line 4 under a condition"),
        (f'TP=2\n[ -n "$BIG" ] && TP=4\nGPUS=$TP\n{SERVE} -tp $GPUS', "4: $TP is set in line 2 under a condition"),
        (f'TP=2\n[ -z "$BIG" ] || TP=4\n{SERVE} -tp $TP', "3: $TP is set in line 2 under a condition"),
        (f'case "$SIZE" in\n  large) TP=4 ;;\nesac\n{SERVE} -tp ${{TP:-2}}', "4: $TP is set in line 2 under a condition"),
        (f"if a; then export CUDA_VISIBLE_DEVICES=0; fi\n{SERVE}", "2: $CUDA_VISIBLE_DEVICES is set in line 1 under a condition"),
        (f"CUDA_VISIBLE_DEVICES=0\n{SERVE}", "2: $CUDA_VISIBLE_DEVICES is set without `export`"),
        (f"TP=4\nTP=2 {SERVE} -tp $TP", "2: names $TP, which it also sets"),
        (f"ARGS=(-tp 2)\n{SERVE} $ARGS", "2: names $ARGS, an array, without [@]"),
        (f'ARGS=(-tp 2)\nARGS="-tp 4"\n{SERVE} "${{ARGS[@]}}"', "3: $ARGS is set as an array and as text (line 2)"),
        (f"(TP=2; export TP)\n{SERVE} -tp ${{TP:-4}}", "2: $TP is set in line 1 in a subshell"),
        (f"TP=4\nsetup() {{ TP=8; }}\nsetup\n{SERVE} -tp $TP", "4: $TP is set in line 2 of a function"),
        (f"main() {{\n  {SERVE} -tp 2\n}}\nmain", "2: stands in a function (line 1)"),
        (f"run() {{ \"$@\"; }}\nrun {SERVE} -tp 2", "2: is run by the function run"),
        (f"TP=2\nfor TP in 1 4; do {SERVE} -tp $TP; done", "2: stands in a loop (line 2)"),
        (f"while true; do\n{SERVE}\ndone", "2: stands in a loop (line 1)"),
        (f"for i in 0 1\ndo {SERVE} --port 800$i &\ndone", "2: stands in a loop (line 1)"),
        (f"eval '{SERVE} -tp 2'", "1: is run by `eval`"),
        (f"TP=2\neval $(settings)\n{SERVE} -tp $TP", "3: $TP may be set by `eval` (line 2)"),
        (f"TP=2\nsource env.sh\n{SERVE} -tp $TP", "3: $TP may be set by env.sh (line 2)"),
        (f". ./env.sh\n{SERVE} -tp ${{TP:-2}}", "2: $TP may be set by env.sh (line 1)"),
        (f"TP=2\nunset TP\n{SERVE} -tp $TP", "3: $TP is changed by `unset` (line 2)"),
        (f"TP=2\nread -r TP\n{SERVE} -tp $TP", "3: $TP is changed by `read` (line 2)"),
        (f"TP=2\n((TP *= (1 + 1)))\n{SERVE} -tp $TP", "3: $TP is changed by `let` (line 2)"),
        (f'set -- -tp 2\n{SERVE} "$@"', "2: $@ is changed by `set` (line 1)"),
        (f"if a; then cat > f.yaml <<EOF\ntp: 2\nEOF\nfi\n{SERVE} --config f.yaml", "5: f.yaml is written in line 1 under a condition"),
        (f"echo a: 1 >> f.yaml\n{SERVE} --config f.yaml", "2: f.yaml is written by the command of line 1"),
        (f"{SERVE} -tp 2 && {SERVE} -tp 4 || exit 1", "1: has commands of engines in lines 1, 1, and the condition of line 1"),
        (f"if a; then\n{SERVE} -tp 4\nelse\n{SERVE}\nfi", "2: has commands of engines in lines 2, 4, and the condition of line 1"),
        (f'case "$S" in\n  small) {SERVE} ;;\n  *)\n{SERVE} -tp 4;;\nesac', "2: has commands of engines in lines 2, 4, and the condition of line 1"),
        (f"exec {SERVE} -tp 4\n{SERVE}", "1: has commands of engines in lines 1, 2, and `exec` of line 1"),
    ],
)  # fmt: skip
def test_what_is_not_followed_is_refused_where_the_engine_needs_it(script: str, told: str, tmp_path: Path) -> None:
    written(tmp_path, "TP=8\n", "env.sh")
    (fault,) = faults(written(tmp_path, f"{script}\n", "run.sh"), ON_ONE)
    assert f"run.sh:{told}" in fault and "which is not followed; allowed: the command that runs, in quotes" in fault
    assert ("with --replicas" in fault) == ("in a loop (" in told)


@pytest.mark.parametrize(
    "beside", ["rm -f vllm", "pull vllm/vllm-openai:v0.12.0", "logs -f vllm", "stop vllm", "tag my/vllm hub/vllm:v1"]
)
def test_of_a_runner_s_commands_only_those_that_start_a_container_count(beside: str, tmp_path: Path) -> None:
    run = "docker run --gpus all --name vllm vllm/vllm-openai:v0.12.0 --model llama-3.1-8b -tp 4"
    found = read(f"docker {beside}\n{run}\npodman {beside}", tmp_path)
    assert found.launched.serving.tp == 4 and found.launched.replicas == 1
    assert read(f"docker exec vllm {SERVE} -tp 2", tmp_path).launched.serving.tp == 2


def test_process_substitution_is_named_as_the_fault(tmp_path: Path) -> None:
    script = f'#!/bin/bash\n{SERVE} --config <(echo "tensor-parallel-size: 4")\n'
    (fault,) = faults(written(tmp_path, script, "run.sh"), ON_ONE)
    assert "run.sh:2: --config: is known only as it runs" in fault and "process substitution" in fault


@pytest.mark.parametrize(
    "script",
    [
        "if [ -n $DEBUG ]; then LEVEL=debug; fi\nif true; then TP=8; fi\ncd /srv && TP=4\nexport LEVEL\nSERVE -tp $TP",
        "setup() { TP=8; }\nsetup\nSERVE -tp 4",
        "source venv/bin/activate\nTP=4\nSERVE -tp $TP",
        "source env.sh\neval $(ssh-agent)\nTP=4\nSERVE -tp $TP",
        "if [ -z $X ]; then\nexport TP=4 && SERVE -tp 4\nfi",
        "(export GPUS=4; SERVE -tp $GPUS) &\nwait",
        "pip install x && export TP=4 && SERVE -tp $TP",
        "until curl h; do sleep 1; done\n[ -f x ] || exit 1\nSERVE -tp 4 2>&1 > log --port 1 | tee x",
    ],
)
def test_what_does_not_touch_the_engine_is_fine(script: str, tmp_path: Path) -> None:
    found = read(script.replace("SERVE", SERVE), tmp_path)
    assert found.launched.serving.tp == 4
    told = "`eval` (line 2) is taken to set nothing that the engine reads"
    assert found.assumed == ((told,) if "eval" in script else ())


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (f"X=2.5\n{SERVE} -tp ${{X%%.5}}", "2: -tp: is set by ${X%%.5}, an expansion that is not read"),
        (f"N=4\n{SERVE} -tp $((N/2))", "2: -tp: is known only as it runs"),
        (f"{SERVE} -tp `nvidia-smi -L | wc -l`", "1: -tp: is known only as it runs"),
        (f"A=(1 2)\n{SERVE} -tp ${{#A[@]}}", "2: -tp: is known only as it runs"),
        (f"N=$(nvidia-smi -L | wc -l)\n{SERVE} -tp $N", "2: -tp: is known only as it runs"),
        (f"\nARGS=(-tp 2 # )\n{SERVE} -tp 2", "2: an array is not closed"),
        (f"{SERVE} \\ \n -tp 2", "1: a blank stands after a backslash, which therefore ends the command"),
        (f"{SERVE} -tp $1", "1: -tp: is set by $1, which the file does not state"),
    ],
)
def test_what_a_script_does_not_state_is_a_fault(script: str, told: str, tmp_path: Path) -> None:
    (fault,) = faults(written(tmp_path, f"{script}\n", "run.sh"), ON_ONE)
    assert f"run.sh:{told}" in fault


def test_quotes_keep_a_variable_one_word(tmp_path: Path) -> None:
    told = faults(written(tmp_path, f'X="-tp 4"\n{SERVE} "$X"', "run.sh"), ON_ONE)
    assert any("-tp 4: is not known of" in each for each in told)


def test_a_comment_at_the_head_holds_for_the_first_engine(tmp_path: Path) -> None:
    """Commands of other kinds between them do not end it. It does not hold for a second engine."""
    head = "#!/bin/bash\n# llmsize/gpu=h100-sxm llmsize/replicas=3 llmsize/engine=vllm:0.12.0\nset -euo pipefail\ncd /srv\n"
    found = read(f"{head}{SERVE} -tp 2", tmp_path, UserFacts())
    assert (found.launched.replicas, found.launched.gpu) == (3, "h100-sxm")
    two = written(tmp_path, f"{head}{SERVE} -tp 2 &\n{SERVE} -tp 4\n", "two.sh")
    (fault,) = faults(two, UserFacts())
    assert "two.sh:6" in fault and "how many replicas run" in fault


def test_the_environment_of_a_container_counts_before_the_defaults_of_its_script(tmp_path: Path) -> None:
    text = f"""\
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.12.0
    env: [{{name: TP, value: "4"}}]
    command: [bash, -c, 'TP=${{TP:-2}}; : "${{TP:=1}}"; {SERVE} -tp $TP']
"""
    assert only(existing(written(tmp_path, text), UserFacts(gpu="h100-sxm"))).launched.serving.tp == 4


def test_arrays_without_an_end_end_soon(tmp_path: Path) -> None:
    path = written(tmp_path, "A=(\n" + "'a' # )\n" * 12_000 + "vllm serve m\n", "run.sh")
    assert "more than 10,000 words" in str(faults(path, ON_ONE)) or "not closed" in str(faults(path, ON_ONE))


def test_a_script_with_line_ends_of_windows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_bytes(f"#!/bin/bash\r\n{SERVE} -tp 2\r\n".encode())
    (fault,) = faults(str(path), ON_ONE)
    assert "run.sh:1: its lines end as those of Windows (CRLF)" in fault


def test_a_container_of_the_engine_takes_the_model_as_its_first_word(tmp_path: Path) -> None:
    run = "docker run --gpus all HOW vllm/vllm-openai:v0.12.0 meta-llama/Llama-3.1-8B-Instruct -tp 4"
    found = read(run.replace("HOW", ""), tmp_path)
    assert (found.launched.model, found.launched.serving.tp) == ("meta-llama/Llama-3.1-8B-Instruct", 4)
    (fault,) = faults(written(tmp_path, run.replace("HOW", "--entrypoint bash"), "run.sh"), ON_ONE)
    assert "no command of an engine" in fault


def test_too_many_replicas_are_told_by_their_own_name() -> None:
    (fault,) = faults(f"{SERVE} -tp 4", ON_ONE._replace(replicas=5000))
    assert "replicas: must be a whole number above 0 and at most 4,096, not '5000'" in fault
