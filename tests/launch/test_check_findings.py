"""What `llmsize check` finds in flags: what fails, what must be on, what the model or its drafts say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_commands import BGE, CHAT, LLAMA

from sizing.cli.check import CHECK_OPTIONS
from sizing.cli.main import run
from sizing.launch.check import check
from sizing.launch.identity import UserFacts
from sizing.question.options import SET_OPTIONS, GivenOptions, options_of
from sizing.specs.errors import InputError

LINE = "vllm serve {} -tp {} --max-model-len {} --quantization fp8"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (LINE.format("llama-3.1-8b", 1, 8192), "model"),
        (LINE.format("llama-3.1-70b", 2, 2048), "max_model_len"),
        (LINE.format("llama-3.1-70b", 1, 8192), "memory"),
        (LINE.format("llama-3.1-70b", 3, 8192), "layout"),
        (LINE.format("llama-3.1-70b", 2, 8192), "demand"),
    ],
)
def test_what_fails_is_named(line: str, rule: str) -> None:
    (found,) = check(line, demand="chat", filled=UserFacts(gpu="h100-sxm", replicas=1), simulated=False)
    beyond = ["ttft", "itl"] * (rule == "demand")  # a queue that grows keeps no limit
    assert [finding.rule for finding in found.findings if finding.level == "error"] == [rule, *beyond]


@pytest.mark.parametrize(
    ("served", "level"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "ok"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "ok"),
        ("llama-3.1-70b", "ok"),  # a short name may mean either
        ("meta-llama/Llama-3.1-70B", "warning"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct", "warning"),
        ("meta-llama/Llama-3.1-8B-Instruct", "error"),
    ],
)
def test_another_checkpoint_of_the_same_sizes_is_looked_at(served: str, level: str) -> None:
    line = f"vllm serve {served} -tp 4 --max-model-len 2048"  # too short: nothing is predicted
    (found,) = check(line, demand="chat", filled=UserFacts(gpu="h100-sxm", replicas=4), simulated=False)
    assert [finding.level for finding in found.findings if finding.rule == "model"] == [level]


def test_without_quantisation_the_weights_are_those_of_the_checkpoint() -> None:
    """The chat's own FP8 says nothing of a server that loads 16-bit weights."""
    line, filled = "vllm serve llama-3.1-70b -tp 4 --max-model-len 8192", UserFacts(gpu="h100-sxm", replicas=9)
    (found,) = check(line, demand="chat", filled=filled, simulated=False)
    (quantised,) = check(f"{line} --quantization fp8", demand="chat", filled=filled, simulated=False)
    formats = [each.held.answer.pool.replica.plan.weight_format for each in (found, quantised)]  # type: ignore[union-attr]
    assert formats == ["bf16", "fp8"]


@pytest.mark.parametrize(
    ("more", "settings", "failed"),
    [
        ("", "optimisations: {lora: 8x64}", ["lora"]),
        ("--enable-lora --max-loras 8 --max-lora-rank 64", "optimisations: {lora: 8x64}", []),
        ("--no-enable-prefix-caching", "optimisations: {prefix: 0.5}", ["prefix_caching"]),
        ("", "optimisations: {prefix: 0.5}", []),
    ],
)
def test_what_the_demand_counts_on_must_be_on(more: str, settings: str, failed: list[str], tmp_path: Path) -> None:
    demand = tmp_path / "demand.yaml"
    stated = "model: llama-3.1-8b\ntokens: {isl: 1000, osl: 100}\ndemand: {requests_per_s: 1}\n"
    demand.write_text(stated + settings, encoding="utf-8")
    line = f"vllm serve llama-3.1-8b --max-model-len 8192 {more}"
    (found,) = check(line, demand=str(demand), filled=UserFacts(gpu="h100-sxm", replicas=1), simulated=False)
    assert [finding.rule for finding in found.findings if finding.level == "error"] == failed


def test_adapters_that_nobody_asked_for_take_memory(tmp_path: Path) -> None:
    demand = tmp_path / "demand.yaml"
    demand.write_text(
        "model: llama-3.1-8b\ntokens: {isl: 500, osl: 100}\ndemand: {requests_per_s: 1}\n", encoding="utf-8"
    )
    caches = []
    for more in ("", " --enable-lora --max-loras 16 --max-lora-rank 64"):
        line = f"vllm serve llama-3.1-8b --max-model-len 2048{more}"
        (found,) = check(line, demand=str(demand), filled=UserFacts(gpu="h100-sxm", replicas=1), simulated=False)
        assert found.held is not None and found.held.answer is not None
        caches.append(found.held.answer.pool.replica.memory.kv_cache_gib)
    assert caches[1] < caches[0] - 1


DRAFTING = 'vllm serve llama-3.1-8b --max-model-len 8192 --speculative-config \'{"method": "%s", "num_speculative_tokens": %d}\''


def test_the_acceptance_of_drafts_is_stated_or_assumed() -> None:
    """No flag says how many drafted tokens a model accepts, and they decide what a deployment serves."""

    def most(method: str, tokens: int, *stated: str) -> tuple[float, tuple[str, ...]]:
        options = options_of(GivenOptions(SET_OPTIONS, {"set": ["model=llama-3.1-8b", *stated]}))
        filled = UserFacts(gpu="h100-sxm", replicas=4)
        (found,) = check(DRAFTING % (method, tokens), demand="chat", filled=filled, options=options, simulated=False)
        assert found.held is not None and found.held.most_requests_per_s is not None
        return found.held.most_requests_per_s, found.parts[0].assumed

    rates = [most("ngram", 4, f"optimisations.speculative=ngram:4@{share}")[0] for share in (0.3, 0.5, 0.7)]
    assert rates == sorted(set(rates))
    assert any("drafted tokens are accepted at" in note for note in most("eagle3", 3)[1])
    assert not any("accepted at" in note for note in most("eagle3", 3, "optimisations.speculative=eagle3:3@0.7")[1])
    with pytest.raises(InputError, match=r"--set optimisations\.speculative=ngram:4@ACCEPTANCE"):
        most("ngram", 4)
    with pytest.raises(InputError, match=r"starts ngram:4, and --set optimisations\.speculative says ngram:5@0.5"):
        most("ngram", 4, "optimisations.speculative=ngram:5@0.5")


def test_a_comment_says_the_drafts_that_the_flags_start(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"# llmsize/speculative=ngram:5@0.5\n{DRAFTING % ('ngram', 4)}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"run.sh:1: speculative: says ngram:5@0.5, and the flags start ngram:4"):
        check(str(path), demand="chat", filled=UserFacts(gpu="h100-sxm", replicas=1), simulated=False)


@pytest.mark.parametrize(
    ("command", "task", "level"),
    [
        (f"vllm serve {LLAMA}", "generate", None),
        (f"vllm serve {LLAMA} --runner generate", "generate", None),
        (f"vllm serve {LLAMA} --runner pooling", "generate", "error"),
        (f"vllm serve {LLAMA} --task embed", "generate", "error"),
        (f"vllm serve {LLAMA} --convert embed", "generate", "error"),
        (f"sglang serve --model-path {LLAMA} --is-embedding", "generate", "error"),
        (f"vllm serve {LLAMA}", "embed", "error"),
        (f"vllm serve {LLAMA} --runner pooling", "embed", None),
        (f"vllm serve {LLAMA} --runner pooling --convert classify", "embed", "error"),
        (f"vllm serve {LLAMA} --runner pooling --convert classify", "classify", None),
        (f"vllm serve {LLAMA} --runner pooling", "classify", "warning"),
        (f"sglang serve --model-path {LLAMA} --is-embedding", "classify", None),
        (f"vllm serve {LLAMA} --convert embed", "score", None),
        (f"vllm serve {BGE}", "embed", None),
        (f"vllm serve {BGE} --runner generate", "embed", "error"),
    ],
)
def test_what_cannot_do_the_task_of_the_demand_fails(
    command: str, task: str, level: str | None, tmp_path: Path
) -> None:
    demand = tmp_path / "demand.yaml"
    model, tokens = (BGE, "{isl: 400}") if BGE in command else (LLAMA, "{isl: 400, osl: 1}" if task != "generate" else "{isl: 400, osl: 50}")  # fmt: skip
    demand.write_text(f"model: {model}\ntask: {task}\ntokens: {tokens}\ndemand: {{requests_per_s: 1}}\n", encoding="utf-8")  # fmt: skip
    (found,) = check(command, demand=str(demand), filled=UserFacts(gpu="h100-sxm", replicas=1), simulated=False)
    assert [each.level for each in found.findings if each.rule == "task"] == [level] * (level is not None)
    assert found.passed is (level != "error")


def test_a_length_beyond_the_model_s_is_a_finding_at_its_flag(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("vllm serve llama-3.1-8b \\\n  --max-model-len 200k\n", encoding="utf-8")
    (found,) = check(str(path), demand="chat", filled=UserFacts(gpu="h100-sxm", replicas=1), simulated=False)
    (length,) = [each for each in found.findings if each.rule == "max_model_len"]
    assert (length.level, length.line) == ("error", 2) and "more than the 131,072 positions of" in length.message


def test_flags_that_are_said_to_change_nothing_stand_in_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    line = "vllm serve llama-3.1-8b --my-plugin 3"
    assert run(["check", line, *CHAT, "-g", "l4", "--replicas", "1", "--ignore-flags", "my_plugin,--other"]) == 2
    assert capsys.readouterr().err == "llmsize: --ignore-flags: --other: is in no command, under this name\n"


def test_pods_without_gpus_are_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "k.yaml"
    path.write_text(
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command: [vllm, serve, llama-3.1-8b]\n", encoding="utf-8"
    )
    (found,) = check(str(path), demand="chat", filled=UserFacts(gpu="h100-sxm"), simulated=False)
    assert [each.level for each in found.findings if each.rule == "gpus"] == ["warning"]


def test_flags_that_contradict_and_nodes_are_looked_at() -> None:
    line = "vllm serve llama-3.1-70b -tp 2 --max-model-len 8192 --quantization fp8 -tp 16"
    (found,) = check(line, demand="chat", filled=UserFacts(gpu="h100-sxm", replicas=4), simulated=False)
    looked = {finding.rule: finding.message for finding in found.findings if finding.level == "warning"}
    assert found.passed and looked.keys() == {"nodes", "flags"}
    assert looked["flags"] == "-tp contradicts what is stated before it: the last, 16, counts"
    assert looked["nodes"].startswith("a replica of 16 GPUs takes more than 1 node of 8")


@pytest.mark.parametrize(
    ("model", "longest", "rule"),
    [("google/gemma-3-12b-it", 1712, None), ("google/gemma-3-12b-it", 1711, "max_model_len"), (LLAMA, 8192, "images")],
)
def test_images_of_a_demand_count_in_lengths_and_need_an_encoder(model: str, longest: int, rule: str | None) -> None:
    stated = {"isl": 1000, "osl": 200, "rps": 0.1, "images": "2x1024x1024"}
    found = check(
        f"vllm serve {model} --max-model-len {longest}",
        filled=UserFacts(gpu="h100-sxm", replicas=1, engine="vllm:0.12.0"),
        options=options_of(GivenOptions(CHECK_OPTIONS, stated)),
        simulated=False,
    )[0]
    assert [each.rule for each in found.findings if each.level == "error"] == [rule] * (rule is not None)


@pytest.mark.parametrize(("longest", "level"), [(16_000, "ok"), (15_999, "error")])
def test_the_last_turn_of_a_conversation_is_its_longest_request(longest: int, level: str, tmp_path: Path) -> None:
    """Ten prompts that grow by 1,000 and the answer's 300 each, from 4,000 on, and the last answer: 4,000 + 9 x 1,300 + 300."""
    file = tmp_path / "w.yaml"
    lengths = "tokens: {isl: 4000, osl: 300}\noptimisations: {prefix: {turns: 10, shared_tokens: 3000}}\n"
    file.write_text(f"model: {LLAMA}\n{lengths}demand: {{requests_per_s: 1}}\n")
    line, filled = f"vllm serve {LLAMA} --max-model-len {longest}", UserFacts(gpu="h100-sxm", replicas=8, engine="vllm")
    (found,) = check(line, demand=file, filled=filled, simulated=False)
    assert [each.level for each in found.findings if each.rule == "max_model_len"] == [level]
