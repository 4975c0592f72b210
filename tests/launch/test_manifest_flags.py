"""Flags of a server: on which line they stand, of which version they are, which change nothing, and files of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import IMAGE, KINDS, MODEL, faults, only, written

from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts
from sizing.launch.terms import layout_of
from sizing.specs.errors import InputError


def test_flags_have_the_lines_on_which_they_stand(tmp_path: Path) -> None:
    text = KINDS["deployment"]
    lines = only(existing(written(tmp_path, text), UserFacts())).lines
    place = next(number for number, line in enumerate(text.splitlines(), 1) if "--tensor-parallel-size" in line)
    assert lines["tp"] == lines["model"] == place
    assert lines["replicas"] == 6


def test_a_flag_that_stands_twice_is_told() -> None:
    found = only(
        existing(
            f"vllm serve {MODEL} -tp 4 --max-num-seqs 8 -tp=2 --max-num-seqs 8", UserFacts(gpu="h100-sxm", replicas=1)
        )
    )
    assert layout_of(found.launched).tp == 2
    assert [(stated.flag, stated.value) for stated in found.again] == [("-tp", 2)]


@pytest.mark.parametrize(
    "level", ["-O3", "-O 3", "-O=3", "--compilation-config 3", "-cc.level 3", "--compilation-config '{\"level\": 3}'"]
)
def test_levels_of_compilation_are_read_as_vllm_reads_them(level: str) -> None:
    assert (
        only(existing(f"vllm serve {MODEL} {level} -tp 4", UserFacts(gpu="h100-sxm", replicas=1))).launched.serving.tp
        == 4
    )


@pytest.mark.parametrize(
    "words",
    [
        "-O0", "-O 0", "-O.level=0", "-cc.cudagraph_mode=NONE", "--compilation-config '{\"cudagraph_mode\": \"NONE\"}'",
        "--compilation-config '{\"level\": 0, \"pass_config\": {}}'", "--compilation-config.use_cudagraph=false",
    ],
)  # fmt: skip
def test_graphs_switched_off_by_any_flag_are_off(words: str) -> None:
    assert only(existing(f"vllm serve {MODEL} {words}", ON_ONE)).launched.serving.enforce_eager is True


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (f"vllm serve {MODEL} --max-cudagraph-capture-size 8", "--max-cudagraph-capture-size 8 (line 1)"),
        (f"vllm serve {MODEL} --long-prefill-token-threshold 128", "--long-prefill-token-threshold 128 (line 1)"),
        (f"vllm serve {MODEL} -cc.cudagraph_capture_sizes=[1]", "cudagraph_capture_sizes [1] (line 1)"),
        (
            f"python -m sglang.launch_server --model-path {MODEL} --cuda-graph-max-bs 8",
            "--cuda-graph-max-bs 8 (line 1)",
        ),
    ],
)
def test_limits_of_graphs_are_said_to_be_not_modelled(command: str, named: str) -> None:
    (note,) = [each for each in only(existing(command, ON_ONE)).assumed if "not modelled" in each]
    assert note.startswith(named)


def test_a_script_may_state_its_variables_by_default(tmp_path: Path) -> None:
    text = f'MODEL=${{MODEL:-{MODEL}}}\nTP=${{TP:-4}}\nGPUS=$TP\nvllm serve "$MODEL" -tp $GPUS --max-model-len 8k\n'
    found = only(existing(written(tmp_path, text, "run.sh"), ON_ONE)).launched
    assert (found.model, found.serving.tp) == (MODEL, 4)


def test_the_command_of_a_launcher_may_stand_in_quotes(tmp_path: Path) -> None:
    text = f'srun -N 2 bash -c "trtllm-llmapi-launch trtllm-serve {MODEL} --tp_size 16"\n'
    assert only(existing(written(tmp_path, text, "run.sh"), ON_ONE)).launched.serving.tp == 16


def test_flags_of_another_version_are_refused() -> None:
    line = f"vllm serve {MODEL} --all2all-backend naive"
    with pytest.raises(InputError, match=r"is no flag of vLLM 0\.9\.2; allowed: from 0\.12\.0"):
        existing(line, UserFacts(gpu="h100-sxm", replicas=1, engine="vllm:0.9.2"))


def test_a_flag_may_be_said_to_change_nothing() -> None:
    line = f"vllm serve {MODEL} --my-plugin x -tp 2"
    found = only(existing(line, UserFacts(gpu="h100-sxm", replicas=1, ignored=frozenset({"--my-plugin"}))))
    assert layout_of(found.launched).tp == 2 and found.passed == {"--my-plugin"}
    (told,) = faults(
        f"vllm serve {MODEL} --tensor-parallel-size 2", ON_ONE._replace(ignored=frozenset({"--tensor-parallel-size"}))
    )
    assert "--tensor-parallel-size: changes what is predicted" in told


ON_ONE = UserFacts(gpu="h100-sxm", replicas=1)


@pytest.mark.parametrize(
    "flags", ["--dtype auto", '--hf-overrides \'{"rope_scaling": {"factor": 2.0}}\'', "--cpu-offload-gb 0"]
)
def test_flags_that_change_nothing_with_these_values_are_read_over(flags: str) -> None:
    assert (
        only(existing(f"vllm serve {MODEL} {flags}", ON_ONE)).launched
        == only(existing(f"vllm serve {MODEL}", ON_ONE)).launched
    )


FLAGS = """\
# of vllm serve
model: meta-llama/Llama-3.1-70B-Instruct
tensor-parallel-size: 4
max_model_len: 8k
gpu-memory-utilization: 0.90
enforce-eager: true
enable-prefix-caching: false
speculative-config: {method: ngram, num_speculative_tokens: 3}
"""


def test_a_file_of_flags_counts_below_the_flags_themselves(tmp_path: Path) -> None:
    """It stands beside the script, in a heredoc, or in a ConfigMap of the same file; its lines are those of faults."""
    (tmp_path / "config.yaml").write_text(FLAGS, encoding="utf-8")
    starts = "vllm serve -tp 2 --config config.yaml\n"
    beside = only(existing(written(tmp_path, starts, "run.sh"), ON_ONE)).launched
    assert (beside.serving.tp, beside.serving.max_model_len, beside.serving.memory_fraction) == (2, 8000, 0.9)
    assert beside.serving.enforce_eager and beside.serving.prefix_caching is None and beside.speculative is not None
    here = f"cat > flags.yaml <<EOF\n{FLAGS}EOF\nvllm serve --config=flags.yaml --tensor-parallel-size 2\n"
    assert only(existing(written(tmp_path, here, "here.sh"), ON_ONE)).launched == beside
    indented = "".join(f"    {line}\n" for line in FLAGS.splitlines())
    mapped = f"kind: ConfigMap\ndata:\n  config.yaml: |\n{indented}---\nkind: Pod\nspec:\n  containers:\n  - image: {IMAGE}\n    args: [--config, /etc/x/config.yaml]\n"
    found = only(existing(written(tmp_path, mapped, "k.yaml"), UserFacts(gpu="h100-sxm")))
    assert found.launched.serving.tp == 4 and found.lines["tp"] == 6
    (told,) = faults(written(tmp_path, here.replace("enforce-eager", "enforce-eagr"), "here.sh"), ON_ONE)
    assert "here.sh:7: --enforce-eagr: is not known" in told
    (tmp_path / "config.yaml").write_text("config: config.yaml\n", encoding="utf-8")
    (told,) = faults(written(tmp_path, starts, "run.sh"), ON_ONE._replace(model=MODEL))
    assert "config.yaml:1: --config: 'config.yaml' is not here" in told


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry.example:5000/vllm:0.9", "0.9"),
        ("registry.example:5000/vllm/vllm-openai:v0.9.2@sha256:0a", "0.9.2"),
        ("rocm/vllm:rocm6.4.1_vllm_0.10.1_20250909", "0.10.1"),
        ("registry.example:5000/vllm/vllm-openai", "0.33.0"),
        ("vllm/vllm-openai-rocm:v0.20.1", "0.20.1"),  # of another vendor's GPUs
        ("mirror/own-vllm-openai-build:7.1", "0.33.0"),
        ("mirror/vllm:2024.05.1", "0.33.0"),  # of an image of somebody's own, whose tags are others
    ],
)
def test_an_image_s_tag_is_the_version_and_a_port_is_none(image: str, version: str, tmp_path: Path) -> None:
    text = f"kind: Pod\nspec:\n  containers:\n  - image: {image}\n    args: [--model, {MODEL}]\n"
    found = only(existing(written(tmp_path, text), UserFacts(gpu="h100-sxm")))
    assert found.launched.serving.engine == f"vllm:{version}"
    assert bool(found.assumed[0].startswith("vLLM 0.33.0")) == (version == "0.33.0")


@pytest.mark.parametrize(
    "env",
    [
        'env: [{name: TP, valueFrom: {configMapKeyRef: {name: sizes, key: TP}}}]',
        'envFrom: [{configMapRef: {name: sizes}}]',
        'envFrom: [{configMapRef: {name: other}}]\n    env: [{name: TP, value: "4"}]',
    ],
)  # fmt: skip
def test_variables_may_stand_in_a_config_map_of_the_same_file(env: str, tmp_path: Path) -> None:
    text = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: chat}}
spec:
  containers:
  - image: {IMAGE}
    args: [--model, {MODEL}, -tp, $(TP)]
    {env}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: sizes}}
data: {{TP: "4"}}
"""
    asked = UserFacts(gpu="h100-sxm")
    assert only(existing(written(tmp_path, text), asked)).launched.serving.tp == 4
    alone = written(tmp_path, text.partition("---")[0])
    if "value:" not in env:
        assert "which the file does not state" in str(faults(alone, asked))


@pytest.mark.parametrize("words", ["vllm, serve", "/usr/bin/python3, -m, vllm.entrypoints.openai.api_server, --model"])
def test_arguments_of_an_image_that_is_the_server_start_no_other(words: str, tmp_path: Path) -> None:
    text = KINDS["deployment"].replace('args: ["--model",', f"args: [{words},")
    (told,) = faults(written(tmp_path, text), UserFacts())
    assert "is an argument of the server that vllm/vllm-openai:v0.19.0 starts itself" in told
