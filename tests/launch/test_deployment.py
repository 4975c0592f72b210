"""Deployments as people write them: each kind of manifest says the same, and what it does not say is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_builders import KINDS, MODEL, faults, only, written

from sizing.launch.check import check
from sizing.launch.deployment import existing
from sizing.launch.identity import UserFacts
from sizing.launch.terms import layout_of
from sizing.specs.errors import InputError


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_the_same(kind: str, tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, KINDS[kind]), UserFacts()))
    launched = found.launched
    assert (launched.model, launched.gpu, launched.replicas, launched.reserved_gpus) == (MODEL, "h100-sxm", 3, 4)
    assert layout_of(launched).gpus == layout_of(launched).tp == 4
    assert (launched.serving.max_model_len, launched.serving.memory_fraction, launched.kv_precision) == (
        16384,
        0.9,
        "fp8",
    )
    assert launched.role == "whole"  # llm-d calls its only pool decode
    version = "0.33.0" if kind in ("kserve", "llm-d", "dynamo") else "0.19.0"  # whose tags are not the engine's
    assert launched.serving.engine == f"vllm:{version}"


def test_pools_are_told_by_flags_or_by_names(tmp_path: Path) -> None:
    decode = KINDS["llm-d"].partition("decode:\n")
    text = decode[0] + "prefill:\n" + decode[2].replace("replicas: 3", "replicas: 1") + "decode:\n" + decode[2]
    found = existing(written(tmp_path, text), UserFacts())
    assert [(each.launched.role, each.launched.replicas) for each in found] == [("prefill", 1), ("decode", 3)]
    line = f"vllm serve {MODEL} -tp 4 --kv-transfer-config "
    config = '\'{"kv_connector": "NixlConnector", "kv_role": "%s"}\''
    for role, ours in (("kv_consumer", "decode"), ("kv_both", "whole")):
        one = only(existing(line + config % role, UserFacts(gpu="h100-sxm", replicas=1)))
        assert one.launched.role == ours


SCRIPT = """#!/usr/bin/env bash
# start it
export TP=8
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 \\
    --tp-size $TP --dp-size 8 --enable-dp-attention --ep-size 8 \\
    --mem-fraction-static 0.85 --trust-remote-code --max-running-requests 512 2>&1 | tee log
"""


def test_a_script_of_sglang_counts_as_sglang_does(tmp_path: Path) -> None:
    found = only(
        existing(written(tmp_path, SCRIPT, "start.sh"), UserFacts(gpu="h200-sxm", replicas=2, engine="sglang:0.5.9"))
    )
    layout = layout_of(found.launched)
    assert (layout.tp, layout.dp, layout.ep, layout.gpus) == (1, 8, 8, 8)
    assert found.launched.serving.max_num_seqs == 64  # of each of the eight ranks
    assert found.lines["tp"] == 5 and found.lines["memory_fraction"] == 6


DOCKER = f"""\
docker run -d --gpus all --ipc=host -p 8000:8000 -e HF_TOKEN=$HF_TOKEN \\
    -v ./models:/models \\
    vllm/vllm-openai:v0.19.0 \\
    --model {MODEL} --tensor-parallel-size 4 --max-model-len 16384
"""


@pytest.mark.parametrize("name", ["start.sh", "start"])
def test_a_container_s_command_is_what_follows_its_image(name: str, tmp_path: Path) -> None:
    found = only(existing(written(tmp_path, DOCKER, name), UserFacts(gpu="h100-sxm", replicas=2)))
    assert (found.launched.model, layout_of(found.launched).tp) == (MODEL, 4)
    assert found.launched.serving.engine == "vllm:0.19.0" and found.lines["tp"] == 4
    assert only(existing(DOCKER, UserFacts(gpu="h100-sxm", replicas=2))).launched == found.launched


def test_ranks_of_a_dense_model_are_replicas() -> None:
    line = f"vllm serve {MODEL} -tp 2 --data-parallel-size 4"
    found = only(existing(line, UserFacts(gpu="h100-sxm", replicas=3))).launched
    assert (found.replicas, layout_of(found).gpus) == (12, 2)
    ranks = f"python -m sglang.launch_server --model-path {MODEL} --tp 8 --dp 4 --enable-dp-attention"
    found = only(existing(ranks, UserFacts(gpu="h100-sxm", replicas=3, engine="sglang:0.5.9"))).launched
    assert (found.replicas, layout_of(found).gpus) == (12, 2)


@pytest.mark.parametrize(
    ("line", "length"),
    [
        (f"vllm serve {MODEL} -tp 4", 131072),  # which vLLM must hold to start
        (f"vllm serve {MODEL} -tp 4 --max-model-len auto", None),
        (f"python -m sglang.launch_server --model-path {MODEL} --tp 4", None),  # which admits what fits
    ],
)
def test_without_a_length_the_model_s_own_must_fit_where_the_engine_says_so(line: str, length: int | None) -> None:
    assert only(existing(line, UserFacts(gpu="h100-sxm", replicas=1))).launched.serving.max_model_len == length


@pytest.mark.parametrize(
    ("model", "flag", "precision"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "fp8", "fp8"),
        ("nvidia/Llama-3.1-70B-Instruct-FP4", "modelopt", None),  # whose name says it: modelopt reads both
        ("deepseek-ai/DeepSeek-V3", "fp8", None),
    ],
)
def test_the_flag_of_a_quantised_checkpoint_says_how_to_read_it(model: str, flag: str, precision: str | None) -> None:
    line = f"vllm serve {model} -tp 8 --quantization {flag}"
    assert only(existing(line, UserFacts(gpu="h100-sxm", replicas=1))).launched.precision == precision


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"vllm serve {MODEL} --tensor-paralel-size 2", "--tensor-paralel-size: is not known of vLLM 0.33.0"),
        (f"vllm serve {MODEL} --tensor-paralel-size 2", "did you mean --tensor-parallel-size?"),
        (f"vllm serve {MODEL} -tp two", "must be a whole number above 0, not 'two'"),
        (f"vllm serve {MODEL} --max-num-seqs", "--max-num-seqs: has no value"),
        (f"vllm serve {MODEL} --speculative-config nonsense", "must be a JSON object"),
        ("vllm serve /models/mine -tp 2", "-m with its name or config.json"),
        (f"vllm serve {MODEL} --max-num-seqs -5", "--max-num-seqs: must be a whole number above 0, not '-5'"),
        (f"vllm serve {MODEL} --max-num-seqs 1.5k --max-model-len 0", "--max-model-len: must be a whole number above 0, not '0'"),
        (f"trtllm-serve {MODEL} --max_batch_size -4", "--max_batch_size: must be a whole number above 0, not '-4'"),
        (f"trtllm-serve {MODEL} --tp_size 2.0", "--tp_size: must be a whole number above 0, not '2.0'"),
        (f"vllm serve {MODEL} --gpu-memory-utilization 1.5", "must be a share above 0 and at most 1, not '1.5'"),
        (f"sglang serve --model {MODEL} --mem-fraction-static nan", "must be a share above 0 and at most 1, not 'nan'"),
        (f"vllm serve {MODEL} --compilation-config '{{\"level\": 3'", "--compilation-config: must be a JSON object"),
        (f"vllm serve {MODEL} --kv-transfer-config '{{kv_role: kv_both}}'", "--kv-transfer-config: must be a JSON object"),
        (f"vllm serve {MODEL} --speculative-config '[]'", "--speculative-config: must be a JSON object, not '[]'"),
        (f"vlm serve {MODEL}", "holds no command of an engine that is known"),
        (f"vlm serve {MODEL}", "did you mean vllm serve?"),
        (f"vllm sevre {MODEL}", "did you mean vllm serve?"),
        (f"python -m sglang.lanch_server --model {MODEL}", "did you mean sglang.launch_server?"),
        ("sglang serve --model-path " + MODEL + " --attn-dp-size 3 --tp-size 8", "are not divided by 3"),
        ("trtllm-serve " + MODEL + " --config missing.yaml", "'missing.yaml' is not here"),
        (f"vllm serve {MODEL} --hf-overrides '{{\"num_hidden_layers\": 8}}'", "num_hidden_layers: is another model than the checkpoint's"),
        (f"sglang serve --model {MODEL} --json-model-override-args '{{\"hidden_size\": 8}}'", "hidden_size: is another model"),
        (f"vllm serve {MODEL} --dtype float32", "--dtype: float32 changes what is predicted, and is not read; allowed: auto, half"),
        (f"vllm serve {MODEL} --num-gpu-blocks-override=64", "64 changes what is predicted"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(line: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        existing(line, UserFacts(gpu="h100-sxm", replicas=1))
    assert words in str(caught.value)


def test_all_faults_of_a_command_are_told_at_once() -> None:
    line = f"vllm serve {MODEL} -tp 0 --max-num-seqs -1 --bogus 3 --kv-cache-dtype fp9 --hf-overrides x"
    told = faults(line, UserFacts())
    assert len(told) == 6
    for words in (
        "-tp",
        "--max-num-seqs",
        "--bogus",
        "--kv-cache-dtype",
        "--hf-overrides",
        "does not say the GPU type",
    ):
        assert any(words in fault for fault in told), words


def test_a_nim_picks_by_itself_what_nobody_can_know(tmp_path: Path) -> None:
    text = """\
kind: Deployment
metadata: {name: nim}
spec:
  template:
    spec:
      containers:
      - image: nvcr.io/nim/meta/llama-3.1-70b-instruct:1.8
        env: [{name: NIM_MODEL_PROFILE, value: vllm-fp8-tp4}]
"""
    (told,) = faults(written(tmp_path, text), UserFacts(gpu="h100-sxm"))
    assert ":7: nvcr.io/nim" in told and "NIM_MODEL_PROFILE (vllm-fp8-tp4)" in told


def test_what_another_command_prints_ends_no_command() -> None:
    line = f"vllm serve {MODEL} --served-model-name $(cat name.txt) --port $((8000 + 1)) -tp 4"
    assert only(existing(line, UserFacts(gpu="h100-sxm", replicas=1))).launched.serving.tp == 4


FLAGS = "-tp 2 --quantization fp8 --max-model-len 8192"


@pytest.mark.parametrize(
    "script",
    [
        'ARGS=(\n  -tp 2 # of two\n  --quantization fp8\n)\nARGS+=(--max-model-len 8192)\nMORE=("${ARGS[@]}")\nvllm serve $M "${MORE[@]}"',
        'ARGS="-tp 2"\nARGS="$ARGS --quantization fp8 --max-model-len 8192"\nexec vllm serve "$M" $ARGS',
        ': "${TP:=2}"\nvllm serve "$M" -tp ${TP} --quantization ${1:-fp8} --max-model-len ${LEN:=8192}',
        f'vllm serve "$M" {FLAGS} "$@"',
    ],
    ids=["arrays", "text", "defaults", "arguments"],
)
def test_a_script_holds_its_flags_in_variables(script: str, tmp_path: Path) -> None:
    asked = UserFacts(gpu="h100-sxm", engine="vllm:0.11.0", replicas=1)
    (plain,) = existing(f"vllm serve llama-3.1-70b {FLAGS}", asked)
    path = tmp_path / "serve.sh"
    path.write_text(f"M=llama-3.1-70b\n{script}\n", encoding="utf-8")
    (found,) = existing(str(path), asked)
    assert found.launched == plain.launched
    assert bool(found.assumed) == ("$@" in script)


def test_a_variable_that_doubles_ends_soon(tmp_path: Path) -> None:
    doubling = (
        ('A="$A$A"', r"\$A: holds more than 100,000 char"),
        ('A=("${A[@]}" "${A[@]}")', "all have more than 100,000"),
    )
    for doubled, told in doubling:
        path = tmp_path / "serve.sh"
        path.write_text("A=xx\n" + f"{doubled}\n" * 40 + "vllm serve x $A\n", encoding="utf-8")
        with pytest.raises(InputError, match=told):
            existing(str(path), UserFacts())


def test_pools_whose_connector_says_no_role_are_told_by_their_names(tmp_path: Path) -> None:
    pool = '{{replicas: {}, containers: [{{modelCommand: vllmServe, args: ["--model", "{}", "--kv-transfer-config", \'{{"kv_connector":"NixlConnector","kv_role":"kv_both"}}\', "--max-num-seqs", "{}"]}}]}}'
    both = f"decode: {pool.format(3, MODEL, 64)}\nprefill: {pool.format(1, MODEL, 8)}\n"
    found = existing(written(tmp_path, both), UserFacts(gpu="h100-sxm"))
    assert {(each.launched.role, each.launched.replicas) for each in found} == {("decode", 3), ("prefill", 1)}
    assert only(existing(written(tmp_path, both.splitlines()[0]), UserFacts(gpu="h100-sxm"))).launched.role == "whole"


LLM_SERVICE = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: chat}
spec:
  model: {uri: "hf://meta-llama/Llama-3.1-70B-Instruct", name: chat}
  replicas: 2
  parallelism: {tensor: 4}
  template:
    containers:
    - name: sidecar
      args: [--port, "1"]
    - name: main
      image: ghcr.io/llm-d/llm-d:v0.2.0
      env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 16384 --kv-cache-dtype fp8"}]
      resources: {limits: {nvidia.com/gpu: "4"}}
"""


def test_a_service_of_llm_d_says_its_flags_without_a_command(tmp_path: Path) -> None:
    on = UserFacts(gpu="h100-sxm")
    found = only(existing(written(tmp_path, LLM_SERVICE), on)).launched
    assert (found.model, found.replicas, found.reserved_gpus, found.role) == (MODEL, 2, 4, "whole")
    assert (found.serving.tp, found.serving.max_model_len, found.kv_precision) == (4, 16384, "fp8")
    bare = LLM_SERVICE[: LLM_SERVICE.index("  template:")]
    found = only(existing(written(tmp_path, bare), on)).launched
    assert (found.model, found.replicas, found.serving.tp, found.reserved_gpus) == (MODEL, 2, 4, None)
    pools = f"{bare}  prefill:\n    parallelism: {{tensor: 2}}\n"
    found_ = [each.launched for each in existing(written(tmp_path, pools), on)]
    assert {(each.role, each.replicas, each.serving.tp) for each in found_} == {("prefill", 1, 2), ("decode", 2, 4)}
    wide = (
        bare.replace("Llama-3.1-70B-Instruct", "x")
        .replace("meta-llama/x", "deepseek-ai/DeepSeek-R1")
        .replace("{tensor: 4}", "{data: 16, dataLocal: 8, expert: true}")
    )
    (found,) = existing(written(tmp_path, wide), on)
    assert (layout_of(found.launched).dp, layout_of(found.launched).ep, found.nodes) == (16, 16, 2)


def test_an_unknown_size_of_a_service_of_llm_d_is_a_fault(tmp_path: Path) -> None:
    path = written(tmp_path, LLM_SERVICE.replace("{tensor: 4}", "{tensorr: 4, dataRPCPort: 5555}"))
    with pytest.raises(InputError) as caught:
        existing(path, UserFacts(gpu="h100-sxm"))
    (fault,) = caught.value.faults
    assert (fault.line, fault.field, fault.nearest) == (7, "parallelism.tensorr", "tensor")


def test_all_that_is_missing_is_asked_for_in_one_message(tmp_path: Path) -> None:
    text = "image: {repository: vllm/vllm-openai, tag: v0.19.0}\nargs: [--tensor-parallel-size, '2']\n"
    with pytest.raises(InputError) as caught:
        existing(written(tmp_path, text), UserFacts())
    (fault,) = caught.value.faults
    assert "does not say the model, the GPU type, how many replicas run" in fault.message
    assert fault.remedy == "use it with -m MODEL, -g GPU (llmsize gpus), --replicas N"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: {{ .Values.x }}\nb: {{- if }}", "is a template"),
        ("a: 1", "holds no command of an engine"),
        ("deployments: [{model: m, servin: {}}]", "servin"),
        ("a: [", "is not valid YAML"),
        ("a: &x [*x]", "alias of what it stands in"),
    ],
)
def test_what_is_no_deployment_is_said(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        existing(written(tmp_path, text), UserFacts())
    assert words in str(caught.value)


def test_aliases_that_expand_to_billions_end_soon(tmp_path: Path) -> None:
    levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 25))
    with pytest.raises(InputError, match="more than 200,000 entries"):
        existing(written(tmp_path, f"a0: &a0 [x]\n{levels}"), UserFacts())


def test_commands_of_one_server_that_listen_on_one_port_are_a_finding() -> None:
    def findings(*commands: str) -> list[tuple[str, str]]:
        (found,) = check("\n".join(commands), demand="chat", filled=UserFacts(gpu="h100-sxm"), simulated=False)
        return [(each.level, each.message) for each in found.findings if each.rule == "port"]

    line = f"vllm serve {MODEL} -tp 2 --max-model-len 4743 --quantization fp8"
    clash = "the commands of lines 1, 2 listen on port 8000: on one server only one of them starts"
    cards = ("CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=2,3")
    assert findings(f"{line} --port 8000", f"{line} --port 8000") == [("warning", clash)]
    assert findings(*(f"{each} {line}" for each in cards)) == [("error", clash)]  # by default
    assert findings(f"{line} --port 8000", f"{line} --port 8001") == []
    assert findings(line, line) == []  # each may be of a server of its own
