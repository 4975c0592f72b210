"""Variables, arrays, conditions and comments of a shell script count as in bash, or are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import faults, only, written

from sizing.launch.existing import Existing, existing
from sizing.launch.identity import Filled

ON_ONE = Filled(gpu="h100-sxm", replicas=1, engine="vllm:0.12.0")
SERVE = "vllm serve llama-3.1-8b"


def read(script: str, folder: Path, asked: Filled = ON_ONE) -> Existing:
    return only(existing(written(folder, f"{script}\n", "run.sh"), asked))


@pytest.mark.parametrize(
    "script",
    [
        f'X="--max-model-len 8192"\nX+=" -tp 4"\n{SERVE} $X',
        f"TP=\nTP+=4\n{SERVE} -tp $TP --max-model-len 8192",
        f'N=81\nexport N+=92\nX=" -tp 4"\n{SERVE} $X --max-model-len $N',
        'ARGS=(\n  llama-3.1-8b # the model (8B)\n  # --max-model-len 4096 (old)\n  -tp 4\n  --max-model-len 8192\n)\nvllm serve "${ARGS[@]}"',
        f'ARGS=( --served-model-name "my (big)\nmodel )" \\\n -tp $((2*2))\n --port $(cat port.txt)\n --max-model-len 8192)\n{SERVE} "${{ARGS[@]}}"',
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
    "script",
    [
        f'ARGS=(-tp 2)\nif [ "$BIG" = 1 ]; then ARGS=(-tp 4); fi\n{SERVE} "${{ARGS[@]}}"',
        f'TP=2\nif [ "$BIG" = 1 ]\nthen\n  TP=4\nfi\nARGS="-tp $TP"\n{SERVE} $ARGS',
        f'TP=2\n[ -n "$BIG" ] && TP=4\nGPUS=$TP\n{SERVE} -tp $GPUS',
        f'TP=2\ncase "$SIZE" in\n  large) TP=4 ;;\nesac\n{SERVE} -tp $TP',
    ],
)
def test_a_variable_set_under_a_condition_is_told(script: str, tmp_path: Path) -> None:
    found = read(script, tmp_path)
    line = next(
        at for at, text in reversed(list(enumerate(script.splitlines(), 1))) if "4" in text and "serve" not in text
    )
    (told,) = found.assumed
    assert found.launched.serving.tp == 4 and "under a condition" in told
    assert f"(line {line})" in told


def test_a_condition_that_sets_nothing_of_the_command_is_not_told(tmp_path: Path) -> None:
    script = f"if [ -n $DEBUG ]; then LEVEL=debug; fi\nif true; then TP=8; fi\ncd /srv && TP=4\nexport LEVEL\n{SERVE} -tp $TP"
    assert read(script, tmp_path).assumed == ()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (f"TP=2\nfor TP in 1 4; do {SERVE} -tp $TP; done", "2: -tp: is set by $TP, which the file does not state"),
        (f"TP=2\nunset TP\n{SERVE} -tp $TP", "3: -tp: is set by $TP, which the file does not state"),
        (f"TP=2\nread TP\n{SERVE} -tp $TP", "3: -tp: is set by $TP, which the file does not state"),
        (f"X=2.5\n{SERVE} -tp ${{X%%.5}}", "2: -tp: is set by ${X%%.5}, an expansion that is not read"),
        (f"N=4\n{SERVE} -tp $((N>2?4:2))", "2: -tp: is set by $((N>2?4:2)), an expansion that is not read"),
        (f"{SERVE} -tp `nvidia-smi -L | wc -l`", "1: -tp: is known only as the script runs"),
        (f"A=(1 2)\n{SERVE} -tp ${{#A[@]}}", "2: -tp: is known only as the script runs"),
        (f"N=$(nvidia-smi -L | wc -l)\n{SERVE} -tp $N", "2: -tp: is known only as the script runs"),
        (f"\nARGS=(-tp 2 # )\n{SERVE} -tp 2", "2: an array is not closed"),
    ],
)
def test_what_a_script_does_not_state_is_a_fault(script: str, told: str, tmp_path: Path) -> None:
    (fault,) = faults(written(tmp_path, f"{script}\n", "run.sh"), ON_ONE)
    assert f"run.sh:{told}" in fault


def test_a_comment_at_the_head_holds_for_the_first_engine(tmp_path: Path) -> None:
    """Commands of other kinds between them do not end it. It does not hold for a second engine."""
    head = "#!/bin/bash\n# llmsize/gpu=h100-sxm llmsize/replicas=3 llmsize/engine=vllm:0.12.0\nset -euo pipefail\ncd /srv\n"
    found = read(f"{head}{SERVE} -tp 2", tmp_path, Filled())
    assert (found.launched.replicas, found.launched.gpu) == (3, "h100-sxm")
    two = written(tmp_path, f"{head}{SERVE} -tp 2 &\n{SERVE} -tp 4\n", "two.sh")
    (fault,) = faults(two, Filled())
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
    assert only(existing(written(tmp_path, text), Filled(gpu="h100-sxm"))).launched.serving.tp == 4


def test_arrays_without_an_end_end_soon(tmp_path: Path) -> None:
    path = written(tmp_path, "A=(\n" + "'a' # )\n" * 12_000 + "vllm serve m\n", "run.sh")
    assert "more than 10,000 words" in str(faults(path, ON_ONE)) or "not closed" in str(faults(path, ON_ONE))
