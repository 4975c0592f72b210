"""A checkpoint whose name says neither model nor precision, and adapters of a rank that no flag takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import sizing
from sizing.cli.main import run
from sizing.launch.answer import Checkpoints, at_rank
from sizing.launch.check import check
from sizing.launch.deploy import deploy
from sizing.launch.identity import UserFacts
from sizing.question.options import SET_OPTIONS, GivenOptions, options_of
from sizing.question.question import Question
from sizing.specs.errors import InputError

DEMAND = options_of(GivenOptions(SET_OPTIONS, {"set": ["demand.requests_per_s=1", "tokens.isl=500", "tokens.osl=100"]}))


def asked(model: str, **options: object) -> Question:
    return sizing.ask(model=model, gpu="h100-sxm", isl=500, osl=100, rps=1, **options)


@pytest.mark.parametrize("target", ["vllm", "kubernetes", "kserve", "compose"])
@pytest.mark.parametrize(("checkpoint", "told"), [("org/llama-awq", True), ("org/Llama-3.1-70B-AWQ", False)])
def test_a_checkpoint_is_read_back_as_what_it_holds(tmp_path: Path, target: str, checkpoint: str, told: bool) -> None:
    outcome = sizing.estimate(asked("llama-3.1-70b", precision="int4"), simulated=False)
    written = deploy(outcome, target, checkpoints=Checkpoints(checkpoint))
    assert ("llmsize/precision" in written.text) is told
    file = tmp_path / "started.sh"
    file.write_text(written.text)
    (found,) = check(str(file), options=DEMAND, simulated=False)
    assert found.passed and found.held is not None and found.held.answer is not None and outcome.answer is not None
    assert found.held.answer.pool.replica.memory == outcome.answer.pool.replica.memory


def test_the_precision_that_nothing_says_is_told() -> None:
    filled = UserFacts(model="llama-3.1-70b", gpu="h100-sxm", replicas=1)
    (found,) = check("vllm serve org/llama-awq -tp 4", options=DEMAND, simulated=False, filled=filled)
    assert any(note.startswith("org/llama-awq stores BF16") for note in found.parts[0].assumed)


def test_a_label_that_contradicts_the_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "start.sh"
    file.write_text("# llmsize/gpu=h100-sxm llmsize/replicas=1 llmsize/model=llama-3.1-70b\nvllm serve llama-3.1-8b\n")
    assert run(["check", str(file), "--isl", "500", "--osl", "100", "--rps", "1", "--no-verify"]) == 2
    assert "is llama-3.1-8b, and llmsize/model says llama-3.1-70b" in capsys.readouterr().err


@pytest.mark.parametrize(("asks", "takes"), [("4x24", 32), ("4x32", 32), ("4x320", 320), ("4x40", 64)])
def test_adapters_take_the_next_rank_of_the_engine_with_its_memory(asks: str, takes: int) -> None:
    question = asked("llama-3.1-8b", lora=asks)
    raised = at_rank(question)
    assert raised.service.extras == asked("llama-3.1-8b", lora=f"4x{takes}").service.extras
    text = deploy(sizing.estimate(raised, simulated=False), "vllm").text
    assert f"--max-lora-rank {takes}\n" in f"{text}\n".replace(" \\\n", "\n")
    assert ("take slots of rank" in text) is (takes != int(asks[2:]))
    if raised != question:
        with pytest.raises(InputError, match=f"4x{takes}"):
            deploy(sizing.estimate(question, simulated=False), "vllm")
