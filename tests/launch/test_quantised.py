"""Quantisations that engines refuse for a checkpoint, formats that change its weights, and switches that are turned off."""

from __future__ import annotations

import pytest

import sizing
from sizing.launch.deploy import deploy
from sizing.launch.deployment import FileDeployment, existing
from sizing.launch.identity import UserFacts
from sizing.specs.errors import InputError

PLAIN, FP8 = "meta-llama/Llama-3.1-70B-Instruct", "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8"
STARTS = {
    "vllm": "vllm serve {} -tp 2 --max-model-len 4743",
    "sglang": "sglang serve --model-path {} --tp 2 --context-length 4743",
}


def read(words: str, *, engine: str = "vllm", model: str = PLAIN, version: str | None = None) -> FileDeployment:
    named = None if version is None else f"{engine}:{version}"
    (found,) = existing(f"{STARTS[engine].format(model)} {words}", UserFacts(gpu="h100-sxm", engine=named))
    return found


def refused(words: str, *, engine: str = "vllm", model: str = PLAIN, version: str | None = None) -> str:
    with pytest.raises(InputError) as error:
        read(words, engine=engine, model=model, version=version)
    return str(error.value)


@pytest.mark.parametrize("engine", STARTS)
def test_a_quantisation_that_contradicts_the_checkpoint_is_a_fault_with_both_names(engine: str) -> None:
    said = refused("--quantization awq", engine=engine, model=FP8)
    assert "awq reads INT4 weights" in said and f"{FP8} stores FP8" in said
    for word in ("fp8", "modelopt", "compressed-tensors"):  # the last two read what the checkpoint says
        assert read(f"--quantization {word}", engine=engine, model=FP8).launched.model == FP8


@pytest.mark.parametrize("engine", STARTS)
@pytest.mark.parametrize("word", ["awq", "gptq", "modelopt_fp4", "compressed-tensors"])
def test_only_what_an_engine_makes_while_it_loads_is_asked_of_a_plain_checkpoint(engine: str, word: str) -> None:
    said = refused(f"--quantization {word}", engine=engine)
    assert f"{word} reads a checkpoint that is quantised already" in said and "fp8, which" in said
    assert read("--quantization fp8", engine=engine).launched.precision == "fp8"


def test_a_folder_may_store_what_its_flag_says() -> None:
    line = f"{STARTS['vllm'].format('/models/llama-awq')} --quantization awq"
    (found,) = existing(line, UserFacts(model=PLAIN, gpu="h100-sxm"))
    assert found.launched.precision == "int4"


@pytest.mark.parametrize("engine", STARTS)
def test_a_format_of_loading_that_stores_other_weights_is_a_fault(engine: str) -> None:
    assert "bitsandbytes changes what is predicted" in refused("--load-format bitsandbytes", engine=engine)
    assert read("--load-format safetensors", engine=engine).launched.precision is None


def test_every_switch_of_vllm_has_a_form_that_turns_it_off() -> None:
    off = read("--enforce-eager --no-enforce-eager --no-language-model-only")
    assert not off.launched.serving.enforce_eager and [each.flag for each in off.again] == ["--no-enforce-eager"]
    assert read("--no-enable-sleep-mode --no_enable_dbo").launched.model == PLAIN
    assert "changes what is predicted, and is not read" in refused("--no-enable-chunked-prefill")
    assert "changes what is predicted, and is not read" in refused("--enable-chunked-prefill=false")
    assert "is not known" in refused("--no-such-flag")
    assert "is not known" in refused("--no-enable-sleep-mode", version="0.8.5")


def test_a_checkpoint_with_a_format_of_its_own_is_not_converted_to_another() -> None:
    asked = sizing.ask("chat", model="openai/gpt-oss-20b", gpu="b200", precision="fp8")
    outcome = sizing.estimate(asked, simulated=False, relaxed=False)
    with pytest.raises(InputError, match=r"a checkpoint of .*gpt-oss-20b in fp8 is needed") as error:
        deploy(outcome, "vllm")
    assert error.value.faults[0].field == "--checkpoint"


def test_vllm_refuses_fewer_tokens_a_step_than_sequences_at_once() -> None:
    said = "vLLM refuses fewer tokens a step \\(1,024\\) than sequences at once \\(2,000\\)"
    sizes = {"max_num_seqs": 2000, "max_num_batched_tokens": 1024}
    with pytest.raises(InputError, match=said):
        sizing.ask("chat", gpu="h100-sxm", **sizes)
    assert sizing.ask("chat", gpu="h100-sxm", engine="sglang", **sizes).service.serving.max_num_seqs == 2000
    line = f"{STARTS['vllm'].format(PLAIN)} --quantization fp8 --max-num-seqs 2000 --max-num-batched-tokens 1024"
    with pytest.raises(InputError, match=said):
        sizing.check(line, demand="chat", filled=UserFacts(gpu="h100-sxm"), simulated=False)
