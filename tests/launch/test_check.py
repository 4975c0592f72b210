"""A deployment that exists against demand, limits and policy: verdicts, figures, and what the command refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from check_commands import CHAT, FIXED, OWN

import sizing
from sizing.answers.answer import Outcome
from sizing.answers.check import SizeCheck
from sizing.cli.check import ASKED_OPTIONS
from sizing.cli.main import run
from sizing.launch.check import check
from sizing.launch.deployment import ONE_START
from sizing.launch.findings import _served
from sizing.launch.identity import UserFacts
from sizing.question.options import SET_OPTIONS, GivenOptions, options_of
from sizing.report.check import record
from sizing.specs.errors import InputError
from sizing.specs.launch import Policy


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return sizing.estimate(sizing.ask("chat", gpu="h100-sxm"), relaxed=False)


@pytest.fixture(scope="module")
def manifest(outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What deploy writes for the chat on h100-sxm."""
    path = tmp_path_factory.mktemp("launch") / "k.yaml"
    path.write_text(sizing.deploy(outcome, "kubernetes").text, encoding="utf-8")
    return str(path)


def test_what_deploy_writes_passes_with_the_same_prediction(outcome: Outcome, manifest: str) -> None:
    (found,) = check(manifest, demand="chat")
    best = outcome.best
    assert found.passed and found.held is not None and found.held.answer is not None and best is not None
    again = found.held.answer.pool
    assert again.replica.settings == best.pool.replica.settings
    assert again.replica.memory == best.pool.replica.memory
    assert (again.replica.layout, again.count) == (best.pool.replica.layout, best.pool.count)
    assert found.held.answer.latency_s("ttft") == best.latency_s("ttft")  # simulated alike
    assert found.held.answer.latency_s("itl") == best.latency_s("itl")
    # The estimate's most is carried on from its demand; that of a check is simulated, to a thousandth.
    assert again.most_requests_per_s == pytest.approx(best.pool.most_requests_per_s, rel=0.005)


def test_the_most_is_one_figure_whatever_is_asked_and_parts_what_is_kept_from_what_is_not(manifest: str) -> None:
    def held_at(rate: float) -> SizeCheck:
        options = options_of(GivenOptions(SET_OPTIONS, {"set": (f"demand.requests_per_s={rate}",)}))
        (found,) = check(manifest, demand="chat", options=options)
        assert found.held is not None and found.passed == found.held.holds
        return found.held

    most = held_at(5).most_requests_per_s
    assert most is not None
    below, above = held_at(most * 0.998), held_at(most * 1.002)
    assert below.most_requests_per_s == above.most_requests_per_s == most
    assert below.holds and not above.holds


def test_the_acceptance_lines(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", manifest, *CHAT, "--format", "junit"]) == 0
    assert 'failures="0"' in capsys.readouterr().out
    assert run(["check", manifest, *CHAT, "--set", "demand.requests_per_s=500"]) == 1
    said = re.search(
        r"(\d+) replicas \((\d+) GPUs\) of this layout would do", " ".join(capsys.readouterr().out.split())
    )
    assert said is not None and int(said[2]) == 2 * int(said[1]) > 100


def test_the_replicas_that_are_named_for_a_confidence_keep_it(
    manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", manifest, *CHAT, "--confidence", "90%"]) == 1
    said = re.search(r"asked 90 %: (\d+) replicas", " ".join(capsys.readouterr().out.split()))
    assert said is not None
    text = Path(manifest).read_text(encoding="utf-8")
    enough = Path(manifest).with_name("enough.yaml")
    enough.write_text(text.replace("replicas: 4", f"replicas: {said[1]}"), encoding="utf-8")
    assert run(["check", str(enough), *CHAT, "--confidence", "90%"]) == 0


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"confidence": 0.9},
        {"max_utilisation": 0.8},
        {"min_headroom": 0.5},
        {"confidence": 0.9, "max_utilisation": 0.5, "min_headroom": 0.1},
    ],
)
def test_the_replicas_that_are_named_keep_the_demand_and_the_policy(policy: dict[str, float], manifest: str) -> None:
    def checked(replicas: int) -> tuple[bool, list[str]]:
        text = Path(manifest).read_text(encoding="utf-8").replace("replicas: 4", f"replicas: {replicas}")
        path = Path(manifest).with_name("resized.yaml")
        path.write_text(text, encoding="utf-8")
        (found,) = check(str(path), demand="chat", policy=Policy.model_validate(policy), simulated=False)
        return found.passed, [finding.message for finding in found.findings if finding.level == "error"]

    passed, said = checked(2)
    named = {int(each) for words in said for each in re.findall(r"(\d+) replicas \(", words)}
    assert not passed and len(named) == 1
    assert all("would do" in words for words in said)
    (count,) = named
    assert checked(count)[0] and not checked(count - 1)[0]


def test_the_most_is_written_as_the_estimate_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    line, asked = "vllm serve llama-3.1-70b -tp 4 --max-model-len 8192", ("--set", "demand.requests_per_s=100")
    assert run(["check", line, *CHAT, "-g", "h100-sxm", "--replicas", "1", *asked, "--no-verify"]) == 1
    checked = re.search(r"serves at most ([\d.]+) ", " ".join(capsys.readouterr().out.split()))
    one = ("-g", "h100-sxm", "--tp", "4", "--gpus", "4", "--max-model-len", "8192", "--precision", "bf16")
    assert run(["estimate", "chat", *one, *asked, "--no-verify"]) == 1
    estimated = re.search(r"4 GPUs serve ([\d.]+) ", " ".join(capsys.readouterr().out.split()))
    assert checked is not None and estimated is not None and checked[1] == estimated[1]


@pytest.mark.parametrize(("most", "written"), [(1.2073, "1.20"), (5 * (1 - 1e-12), "5"), (0.7999, "0.799")])
def test_the_most_is_never_rounded_up(most: float, written: str, manifest: str) -> None:
    (found,) = check(manifest, demand="chat", simulated=False)
    assert found.held is not None
    words = _served(found._replace(held=replace(found.held, most_requests_per_s=most)))
    assert f"serves at most {written} within" in words


def test_replicas_beyond_the_most_gpus_are_said_to_be_so(manifest: str) -> None:
    (found,) = check(manifest, demand="chat", policy=Policy(max_utilisation=0.8, max_gpus=8), simulated=False)
    (missed,) = (finding for finding in found.findings if finding.level == "error")
    assert missed.message.endswith("5 replicas (10 GPUs) of this layout would do, more than the limit of 8 GPUs")


@pytest.mark.parametrize(
    ("flag", "start", "sizes", "has"),
    [
        ("--enable-expert-parallel", "vllm serve", "-tp 4 --max-model-len 8192 --enable-expert-parallel", "qwen3-30b-a3b"),
        ("--ep-size", "sglang serve --model-path", "--tp-size 4 --context-length 8192 --ep-size 4", "qwen3-30b-a3b"),
        ("--limit-mm-per-prompt.video", "vllm serve", "--limit-mm-per-prompt.image 2 --limit-mm-per-prompt.video 0", "qwen2.5-vl-7b"),
        ("--mamba-full-memory-ratio", "sglang serve --model-path", "--mamba-full-memory-ratio 0.5", None),
    ],
)  # fmt: skip
def test_flags_of_what_a_model_does_not_have_are_a_warning(flag: str, start: str, sizes: str, has: str | None) -> None:
    asked = UserFacts(gpu="h100-sxm", replicas=4)
    for model in ("llama-3.1-8b", has) if has else ("llama-3.1-8b",):
        (found,) = check(f"{start} {model} {sizes}", demand="chat", filled=asked, simulated=False)
        said = [each.message for each in found.findings if each.level == "warning" and each.rule == "flags"]
        assert [each.partition(" has no effect")[0] for each in said] == [flag] * (model != has)


def test_what_generates_nothing_is_asked_for_no_output_tokens() -> None:
    options = options_of(GivenOptions(ASKED_OPTIONS, {"isl": 400, "rps": 5.0}))
    for line in (
        "vllm serve qwen3-embedding-8b --runner pooling --max-model-len 8192",
        "sglang serve --model-path llama-3.1-8b --is-embedding",
    ):
        (found,) = check(line, filled=UserFacts(gpu="h100-sxm", replicas=1), options=options, simulated=False)
        assert found.passed and found.question is not None and found.question.service.task == "embed"


def test_vllm_finds_in_a_checkpoint_that_it_embeds_and_sglang_must_be_told() -> None:
    options = options_of(GivenOptions(ASKED_OPTIONS, {"isl": 400, "rps": 5.0}))
    asked = UserFacts(gpu="h100-sxm", replicas=1)
    for start, level in (("vllm serve", "warning"), ("sglang serve --model-path", "error")):
        line = f"{start} qwen3-embedding-8b"
        (found,) = check(line, filled=asked, options=options, simulated=False)
        assert [each.level for each in found.findings if each.rule == "task"] == [level]


LIMITED = "--isl 2000 --osl 300 --ttft p95:2s --itl 60ms"


def failing(asked: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[dict[str, str], dict[str, float]]:
    """The details of the rules that a small deployment of Llama 3.3 70B fails, and its figures."""
    line = "vllm serve llama-3.3-70b -tp 4 --max-model-len 8192"
    words = (*LIMITED.split(), *asked.split(), *more)
    assert run(["check", line, "-g", "a100-sxm-80gb", "--json", *words]) == 1
    (found,) = json.loads(capsys.readouterr().out)["deployments"]
    return {each["rule"]: each["detail"] for each in found["findings"] if each["verdict"] == "error"}, found


@pytest.mark.parametrize("more", [(), ("--no-verify",)])
def test_a_demand_that_is_too_large_names_the_limit_and_how_far_it_is_missed(
    more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    failed, figures = failing("--rps 1.6", capsys, *more)
    assert "serves at most 1.20 within the limits, where ITL reaches its limit" in failed["demand"]
    assert figures["itl_ms"] > 60 and figures["ttft_ms"] > 0
    stated = re.match(r"mean ([\d.,]+) ms, limit 60 ms; ", failed["itl"])
    assert stated is not None and float(stated[1]) == pytest.approx(figures["itl_ms"], rel=1e-3)
    assert "the queue grows" not in failed["demand"] and all(words.endswith("would do") for words in failed.values())


@pytest.mark.parametrize("more", [(), ("--no-verify",)])
def test_a_demand_above_every_stable_rate_says_where_the_queue_grows(
    more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    failed, figures = failing("--rps 5", capsys, *more)
    assert figures["utilisation"] == pytest.approx(5 / figures["max_requests_per_s"])
    used = f"{figures['utilisation']:.0%}".replace("%", " %")
    most = re.search(rf"{used} used; above ([\d.]+), the queue grows without end; 5 replicas", failed["demand"])
    assert most is not None and 1.6 < float(most[1]) < 5
    assert figures["itl_ms"] is None and set(failed) == {"demand", "ttft", "itl"}
    assert all("grows without end" in words and words.endswith("would do") for words in failed.values())


def test_users_beyond_the_most_have_their_latencies(capsys: pytest.CaptureFixture[str]) -> None:
    failed, figures = failing("--users 100 --think-time 20s", capsys, "--no-verify")
    assert re.search(r"serves at most \d+ within the limits, where ITL reaches its limit", failed["demand"])
    assert "itl" in failed and figures["itl_ms"] > 60


def test_long_latencies_are_written_in_digits(capsys: pytest.CaptureFixture[str]) -> None:
    failed, _ = failing("--concurrency 50 --closed-loop", capsys)
    assert re.match(r"p95 \d\d,\d{3} ms, limit 2,000 ms; ", failed["ttft"])


def test_options_state_the_demand_as_a_file_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def found(*stated: str) -> object:
        line = "vllm serve llama-3.1-8b --max-model-len 8192"
        assert run(["check", line, "-g", "l40s", "--no-verify", "--json", *stated]) == 1
        return json.loads(capsys.readouterr().out)

    path = tmp_path / "d.yaml"
    path.write_text(
        "model: llama-3.1-8b\ntokens: {isl: 2000, osl: 300}\ndemand: {requests_per_s: 50}\nlimits: {itl: p95:60ms}\n",
        encoding="utf-8",
    )
    asked = ("--isl", "2k", "--osl", "300", "--rps", "50", "--itl", "p95:60ms")
    assert found("--demand", str(path)) == found(*asked)
    assert found("--demand", str(path), "--rps", "70", "--itl", "60ms") == found(
        *asked[:4], "--rps", "70", "--itl", "60ms"
    )


def test_settings_state_no_demand_of_a_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMSIZE_ITL", "1ms")
    assert run(["check", FIXED, *CHAT, "--no-verify"]) == 0
    assert "limit 1 ms" not in capsys.readouterr().out


def test_a_bare_command_is_one_replica() -> None:
    line = "vllm serve llama-3.1-8b --max-model-len 8192"
    (found,) = check(line, demand="chat", filled=UserFacts(gpu="h100-sxm"), simulated=False)
    assert found.replicas == 1 and sum(ONE_START in part.assumed for part in found.parts) == 1
    (found,) = check(line, demand="chat", filled=UserFacts(gpu="h100-sxm", replicas=3), simulated=False)
    assert found.replicas == 3 and not any(ONE_START in part.assumed for part in found.parts)
    (found,) = check(f"{line} & {line} --port 1", demand="chat", filled=UserFacts(gpu="h100-sxm"), simulated=False)
    assert found.replicas == 2 and not any(ONE_START in part.assumed for part in found.parts)


def test_a_file_says_its_replicas_and_a_command_its_gpu_type(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text("vllm serve llama-3.1-8b --max-model-len 8192\n", encoding="utf-8")
    with pytest.raises(InputError, match="how many replicas run"):
        check(str(path), demand="chat", filled=UserFacts(gpu="h100-sxm"))
    with pytest.raises(InputError, match=r"does not say the GPU type; use it with -g GPU \(llmsize gpus\)"):
        check(path.read_text(encoding="utf-8").strip(), demand="chat")


def test_its_cost_is_that_of_the_estimate(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", manifest, *CHAT, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["deployments"]
    assert run(["estimate", "chat", "-g", "h100-sxm", "--json"]) == 0
    estimated = json.loads(capsys.readouterr().out)
    assert found["usd_per_million_tokens"] == pytest.approx(estimated["cost"]["usd_per_million_output_tokens"])
    # The estimate's headroom is carried on from its demand; that of a check is simulated, to a thousandth of the load.
    assert found["headroom"] == pytest.approx(estimated["load"]["headroom"], abs=0.005)
    assert found["gpus_sure"] == estimated["deployment"]["gpus_sure"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nvidia.com/gpu: '2'", "nvidia.com/gpu: '4'"),  # twice the GPUs that the engine runs on
        ("- name: HF_TOKEN", "- {name: CUDA_VISIBLE_DEVICES, value: '0,1'}\n        - name: HF_TOKEN"),
        ("      containers:\n", "      containers:\n      - {name: other, image: own, resources: {limits: {nvidia.com/gpu: 2}}}\n"),
    ],
)  # fmt: skip
def test_all_gpus_that_are_reserved_are_paid_for_and_counted(old: str, new: str, manifest: str) -> None:
    """4 replicas run on 2 GPUs each, and reserve 4."""
    text = Path(manifest).read_text(encoding="utf-8")
    path = Path(manifest).with_name("reserved.yaml")
    path.write_text(
        text.replace(old, new).replace("gpu: '2'", "gpu: '4'" if "HF_" in old else "gpu: '2'"), encoding="utf-8"
    )
    policy = Policy(max_gpus=10, max_usd_per_million_tokens=4)
    (known,) = check(manifest, demand="chat", policy=policy, simulated=False)
    (found,) = check(str(path), demand="chat", policy=policy, simulated=False)
    assert (known.gpus, known.idle_gpus, found.gpus, found.idle_gpus) == (8, 0, 16, 8)
    assert known.usd_per_hour is not None and found.usd_per_hour == 2 * known.usd_per_hour
    assert known.usd_per_million_tokens is not None
    assert found.usd_per_million_tokens == 2 * known.usd_per_million_tokens
    said = {finding.rule: finding.message for finding in found.findings if finding.level == "error"}
    assert known.passed and said.keys() == {"max_gpus", "max_usd_per_million_tokens"}
    assert said["max_gpus"] == "16 GPUs, limit 10"
    (few,), (many,) = (record((each,)).deployments for each in (known, found))
    assert few.gpus_sure is not None and few.needed_gpus is not None
    assert (many.gpus_sure, many.needed_gpus) == (2 * few.gpus_sure, 2 * few.needed_gpus)


def test_tokens_that_are_not_served_pay_for_nothing(manifest: str) -> None:
    """A deployment that is too small has no cost of the demand; one that is full has the lowest."""

    def cost(replicas: int, rate: float) -> tuple[bool, float | None, float]:
        text = Path(manifest).read_text(encoding="utf-8").replace("replicas: 4", f"replicas: {replicas}")
        path = Path(manifest).with_name("small.yaml")
        path.write_text(text, encoding="utf-8")
        options = options_of(GivenOptions(SET_OPTIONS, {"set": [f"demand.requests_per_s={rate}"]}))
        (found,) = check(str(path), demand="chat", options=options, simulated=False)
        assert found.held is not None
        return found.passed, found.usd_per_million_tokens, found.held.most_requests_per_s or 0

    passed, usd, most = cost(3, 20.8)
    assert not passed and usd is None and most < 20.8
    assert cost(3, 100) == (False, None, most)
    (full, least, _), (half, twice, _) = cost(3, most * 0.999), cost(3, most * 0.4995)
    assert full and half and least is not None and twice == pytest.approx(2 * least, rel=0.002)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{}",), "--demand: is needed"),
        (("{}", "--isl", "9", "--osl", "9"), "nothing says how much to serve"),
        (("{}", "--rps", "9"), "--isl: is required"),
        (("{}", *CHAT, "--set", "serving.tp=4"), "--set serving.tp: is of the deployment"),
        (("{}", *CHAT, "--set", "gpu=l40s", "--set", "tokens.isl=x"), "--set gpu: is of the deployment"),
        (("{}", *CHAT, "--set", "tokens.isl=x"), "--set tokens.isl: must be a whole number"),
        (("{}", *CHAT, "--format", "xml"), "github, junit, sarif"),
        (("{}", *CHAT, "--baseline", "pyproject.toml"), "is not valid JSON"),
        (("{}", *CHAT, "--max-utilisation", "120%"), "--max-utilisation"),
        (("{}", *CHAT, "--max-gpus", "0", "--min-headroom", "lots"), "--min-headroom"),
        (("{}", *CHAT, "-g", "h100-smx"), "did you mean h100-sxm?"),
        (("missing.yaml", *CHAT), "missing.yaml: not found"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *(word.format(FIXED) for word in arguments), "--no-verify"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (("-g", "l40s"), "gpu: is h100-sxm here, and --gpu says l40s"),
        (("-m", "llama-3.1-8b"), "--model says llama-3.1-8b"),
        (("--replicas", "3"), "replicas: is 5 here, and --replicas says 3"),
        (("--engine", "vllm:0.19"), "engine: is 0.33.0 here, and --engine says 0.19"),
        (("--engine", "sglang"), "which starts vLLM"),
    ],
)
def test_options_say_nothing_against_a_file(
    said: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", FIXED, *CHAT, *said, "--no-verify"]) == 2
    assert words in capsys.readouterr().err
    same = {"-g": "h100", "-m": "llama-3.1-70b", "--replicas": "5", "--engine": "vllm:0.33"}[said[0]]
    assert run(["check", FIXED, *CHAT, said[0], same, "--no-verify"]) == 0


@pytest.mark.parametrize("setting", ["GPU=l40s", "ENGINE=sglang", "ENGINE=vllm:0.19", "MODEL=llama-3.1-8b"])
def test_settings_give_way_to_a_file(
    setting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, value = setting.partition("=")
    monkeypatch.setenv(f"LLMSIZE_{name}", value)
    assert run(["check", FIXED, *CHAT, "--no-verify"]) == 0
    assert "10 x h100-sxm: 5 replicas of TP2, vllm:0.33.0" in capsys.readouterr().out


def test_settings_of_the_policy_count_below_the_policy_of_a_file_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMSIZE_MAX_UTILISATION", "10%")
    assert run(["check", FIXED, *CHAT, "--no-verify", "--json"]) == 1
    assert "limit 10 %" in capsys.readouterr().out
    assert run(["check", FIXED, *CHAT, "--no-verify", "--max-utilisation", "99%"]) == 0
    own = tmp_path / "deploy.yaml"
    for policy, code in (("max_gpus: 10", 1), ("max_utilisation: 99%", 0)):
        text = OWN.replace("max_gpus: 8", policy).replace("reserved_gpus: 1", "reserved_gpus: 2")
        own.write_text(text, encoding="utf-8")
        assert run(["check", str(own), "--no-verify"]) == code


@pytest.mark.parametrize("name", ["MAX_UTILISATION", "CONFIDENCE"])
def test_a_wrong_setting_of_the_policy_is_named_by_its_variable(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"LLMSIZE_{name}", "300%")
    assert run(["check", FIXED, *CHAT, "--no-verify"]) == 2
    assert f"llmsize: LLMSIZE_{name}: " in capsys.readouterr().err


def test_what_is_set_is_of_the_demand() -> None:
    def found(*stated: str) -> list[str]:
        options = options_of(GivenOptions(SET_OPTIONS, {"set": list(stated)}))
        (each,) = check(FIXED, demand="chat", options=options, simulated=False)
        return [finding.rule for finding in each.findings if finding.level == "error"]

    assert found("tokens.isl=1000") == []
    assert found("tokens.osl_max=9000") == ["max_model_len"]
    assert found("model=llama-3.1-8b") == ["model"]
    assert found("demand.requests_per_s=100", "limits.ttft=p95:20s") == ["demand", "ttft", "itl"]


CASES = [
    (engine, model, layout)
    for engine in ("vllm", "vllm:0.12.0", "sglang", "sglang:0.5.9", "tensorrt-llm", "tensorrt-llm:1.0")
    for model, layouts in {
        "llama-3.1-8b": ({"tp": 1}, {"tp": 2, "pp": 2}),
        "qwen3-30b-a3b": ({"tp": 2, "ep": 2}, {"tp": 1, "dp": 4, "ep": 4}),
        "qwen3-next-80b-a3b": ({"tp": 4},),
    }.items()
    for layout in layouts
]


@pytest.mark.parametrize(("engine", "model", "layout"), CASES)
def test_what_is_read_back_predicts_the_same(engine: str, model: str, layout: dict[str, int], tmp_path: Path) -> None:
    options = {"model": model, "isl": 1000, "osl": 200, "rps": 3, "itl": "100ms", "engine": engine, **layout}
    question = sizing.ask(gpu="h100-sxm", **options)
    outcome = sizing.estimate(question, simulated=False, relaxed=False)
    best = outcome.best
    if best is None:
        pytest.skip("the engine version does not take the layout")
    path, demand = tmp_path / "k.yaml", tmp_path / "demand.yaml"
    path.write_text(sizing.deploy(outcome).text, encoding="utf-8")
    demand.write_text(
        f"model: {model}\ntokens: {{isl: 1000, osl: 200}}\ndemand: {{requests_per_s: 3}}\nlimits: {{itl: 100ms}}\n"
    )
    (found,) = check(str(path), demand=str(demand), simulated=False)
    assert found.passed and found.held is not None and found.held.answer is not None
    again = found.held.answer.pool
    assert again.replica.settings == best.pool.replica.settings
    assert again.replica.memory == best.pool.replica.memory
    assert (again.count, again.replica.layout) == (best.pool.count, best.pool.replica.layout)
    assert again.closed_s("itl") == best.pool.closed_s("itl")


def test_an_unknown_version_is_of_the_option_that_states_it(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["vllm serve llama-3.1-8b", "-g", "h100-sxm", "--replicas", "1", "--engine", "vllm:99"]
    assert run(["check", *asked, *CHAT, "--no-verify"]) == 2
    assert capsys.readouterr().err.startswith("llmsize: --engine: vllm 99 is not known; allowed: 0.4.0 to")


def test_a_fraction_that_leaves_no_room_for_the_context_is_a_warning_everywhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("-m", "llama-3.1-70b", "-g", "h100-sxm", "--precision", "fp8", "--tp", "2", "--max-model-len", "4743")
    for engine, command, fraction, words in (
        ("vllm", "vllm serve {} -tp 2 --max-model-len 4743 --gpu-memory-utilization", "1.0", "it stops where less than its memory fraction"),
        ("sglang", "sglang serve --model-path {} --tp 2 --context-length 4743 --mem-fraction-static", "0.99", "more than the card has"),
    ):  # fmt: skip
        line = f"{command.format('meta-llama/Llama-3.1-70B-Instruct')} {fraction} --quantization fp8"
        (found,) = check(line, demand="chat", filled=UserFacts(gpu="h100-sxm", replicas=5), simulated=False)
        assert [words in each.message for each in found.findings if each.level == "warning"] == [True]
        stated = ("--engine", engine, "--memory-fraction", fraction)
        estimate = ["estimate", "chat", "-g", "h100-sxm", "--precision", "fp8", "--tp", "2", "--no-verify", *stated]
        for arguments in (["memory", *asked, *stated], estimate):
            assert run(arguments) == 0
            assert words in " ".join(capsys.readouterr().out.split())


def test_the_results_of_check_and_compare_are_shown_as_the_command_line_writes_them() -> None:
    found = check(FIXED, demand="chat", simulated=False)
    assert sizing.shown(found).to_dict()["deployments"][0]["name"] == found[0].name
    question = sizing.ask("chat", gpu=["h100-sxm", "h200-sxm"])
    candidates = sizing.compare(question, simulated=False)
    assert len(sizing.shown(candidates, question=question).to_dict()["candidates"]) == len(candidates)
    with pytest.raises(InputError, match="of compare and memory with their question"):
        sizing.shown(candidates)
