"""A deployment that exists against a policy: bounds of GPUs and cost, and the share of published runs that keep the limits."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from check_commands import FIXED, LLAMA, OWN

from sizing.cli.main import run
from sizing.launch.check import check
from sizing.launch.findings import Checked
from sizing.launch.identity import UserFacts
from sizing.report.check import record, sections
from sizing.specs.launch import Policy


@pytest.mark.parametrize(("simulated", "tp"), [(False, 4), (True, 8)])  # of TP8 a simulation takes an eighth as long
def test_the_chance_is_that_of_the_size_that_runs(simulated: bool, tp: int) -> None:
    @cache  # the ends are compared with what is between them
    def checked(replicas: int) -> Checked:
        line = f"vllm serve llama-3.1-70b -tp {tp} --max-model-len 8192"
        filled = UserFacts(gpu="h100-sxm", replicas=replicas)
        policy = Policy(confidence=0.9)
        (found,) = check(line, demand="chat", policy=policy, filled=filled, simulated=simulated)
        return found

    def chance(found: Checked) -> float:
        assert found.held is not None and found.held.odds is not None and found.held.odds.chance is not None
        return found.held.odds.chance

    first = checked(1)
    sure = record([first]).deployments[0].gpus_sure
    assert sure is not None
    enough = checked(sure // tp)
    assert not first.passed and chance(first) == 0 and enough.passed and chance(enough) >= 0.9
    (missed,) = (each for each in first.findings if each.rule == "confidence")
    assert missed.level == "error" and missed.message.startswith("0 % of published runs like this")
    chances = [chance(checked(count)) for count in range(1, sure // tp + 3)]
    assert chances == sorted(chances) and len(set(chances)) > 2


@pytest.mark.parametrize(("replicas", "level"), [(9, "warning"), (12, None)])
def test_what_fewer_than_half_of_the_runs_keep_passes_with_a_warning(replicas: int, level: str | None) -> None:
    """`estimate` takes 12: 9 do by prediction alone."""
    line = "vllm serve llama-3.1-70b --quantization fp8 --max-model-len 4743"
    (found,) = check(line, demand="chat", filled=UserFacts(gpu="mi300x", replicas=replicas), simulated=False)
    assert found.passed
    assert [each.level for each in found.findings if each.rule == "confidence"] == [level] * (level is not None)


def test_a_policy_is_kept_or_not() -> None:
    def failed(**policy: float) -> list[str]:
        (found,) = check(FIXED, demand="chat", policy=Policy.model_validate(policy), simulated=False)
        rules = [finding.rule for finding in found.findings if finding.level == "error"]
        assert found.passed is (rules == [])
        return rules

    (found,) = check(FIXED, demand="chat", simulated=False)
    held, usd = found.held, found.usd_per_million_tokens
    assert held is not None and held.utilisation is not None and held.odds is not None and usd is not None
    used, chance = held.utilisation, held.odds.chance
    assert chance is not None and 0 < used < 1
    left = 1 / used - 1
    within = {"max_utilisation": used + 0.01, "min_headroom": left - 0.01, "max_gpus": 10}
    assert failed(**within, confidence=min(chance, 0.95), max_usd_per_million_tokens=usd * 1.01) == []
    assert failed(max_utilisation=used - 0.01) == ["max_utilisation"]
    assert failed(min_headroom=left + 0.01, max_gpus=9) == ["max_gpus", "min_headroom"]
    assert failed(confidence=0.95, max_usd_per_million_tokens=usd * 0.99)[0] == "max_usd_per_million_tokens"


def test_the_own_form_has_demand_and_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(OWN, encoding="utf-8")
    assert run(["check", str(path), "--format", "github", "--no-verify"]) == 1
    out = capsys.readouterr().out
    assert (
        f"::error file={path},line=8,title=chat%3A gpus::a replica runs on 2 GPUs, and its containers reserve 1" in out
    )
    path.write_text(OWN.replace("  reserved_gpus: 1\n", ""), encoding="utf-8")
    assert run(["check", str(path), "--format", "github", "--no-verify"]) == 1
    assert f"::error file={path},line=5,title=chat%3A max_gpus::10 GPUs, limit 8" in capsys.readouterr().out
    assert run(["check", str(path), "--max-gpus", "10", "--no-verify"]) == 0  # an option over the file


def test_a_policy_on_gpus_is_not_kept_by_an_unknown_number_of_them(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    devices = "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: COUNT, capabilities: [gpu]}]}}}"
    text = f"services:\n  llm:\n    image: vllm/vllm-openai:v0.20.2\n    command: [--model, {LLAMA}, --tensor-parallel-size, '1']\n    {devices}\n"
    demand = tmp_path / "demand.yaml"
    demand.write_text(f"model: {LLAMA}\ntokens: {{isl: 400, osl: 50}}\ndemand: {{requests_per_s: 1}}\n", encoding="utf-8")  # fmt: skip
    policy = Policy(max_gpus=1, max_usd_per_million_tokens=1e6)
    for count, tp, kept in (("all", 1, False), ("1", 1, True), ("all", 8, True)):
        path.write_text(text.replace("COUNT", count).replace("'1'", f"'{tp}'"), encoding="utf-8")
        bounds = policy.model_copy(update={"max_gpus": tp})
        filled = UserFacts(gpu="h100-sxm", replicas=1)
        (found,) = check(str(path), demand=str(demand), policy=bounds, filled=filled, simulated=False)
        levels = {each.rule: each.level for each in found.findings}
        assert levels["max_gpus"] == levels["max_usd_per_million_tokens"] == ("ok" if kept else "error")
        assert found.gpus_at_least is not kept and record([found]).deployments[0].gpus_at_least is not kept
        (facts, *_) = sections(record([found]))
        assert ("at least 1 x h100-sxm" in str(facts)) is not kept
