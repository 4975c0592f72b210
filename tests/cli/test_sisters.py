"""The same question asked of all commands: the same GPUs, rate, latencies and dollars, from the same corrected step times."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from random_questions import drawn

from sizing.catalog import shelf
from sizing.cli.main import run
from sizing.specs.bands import Corrections, Situation
from sizing.specs.units import HOURS_PER_MONTH

Capture = pytest.CaptureFixture[str]
# Step times of the first are corrected as long as published runs are slower than the model says, those of the second are not.
QUESTIONS = {
    "gpt-oss on b200": "model: openai/gpt-oss-120b\ngpu: b200\nserving: {engine: sglang}\ntokens: {isl: 1000, osl: 300}\n"
    "demand: {requests_per_s: 20}\nlimits: {itl: 20ms, ttft: 'p95:1s'}\n",
    "llama on h100": "model: llama-3.1-8b\ngpu: h100-sxm\ntokens: {isl: 800, osl: 150}\n"
    "demand: {requests_per_s: 90}\nlimits: {itl: 25ms}\n",
}
SITUATIONS = {
    "gpt-oss on b200": Situation("served", "NVIDIA", "sglang", "blackwell", "moe", None),
    "llama on h100": Situation("served", "NVIDIA", "vllm", "hopper", "dense", None),
}
FACTORS = {of: shelf.only(Corrections).of(of) for of in SITUATIONS.values()}
CORRECTED = {of for of, by in FACTORS.items() if (by.decode, by.prefill) != (1.0, 1.0)}
LATENCIES = ("ttft_ms", "itl_ms", "e2e_ms")
RANDOM = 8
OF_A_RUN = 0.1  # a simulation with other requests measures other latencies by so much


def asked(command: str, capsys: Capture) -> dict[str, Any]:
    assert run([*shlex.split(command), "--json"]) == 0, command
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def corrections(record: dict[str, Any]) -> set[str]:
    return {str(one["value"]) for one in record["assumptions"] if one["what"] == "correction of step times"}


def known_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """The sure GPUs of a record and what published runs say of them."""
    return record["gpus_sure"], record["evidence"]["groups"], record["evidence"]["chance"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_same_question_has_one_answer(question: str, tmp_path: Path, capsys: Capture) -> None:
    workload = tmp_path / "service.yaml"
    workload.write_text(QUESTIONS[question], encoding="utf-8")
    answer = asked(f"estimate {workload}", capsys)
    gpus, usd = answer["deployment"]["gpus"], answer["cost"]["usd_per_hour"]
    rate, means = answer["load"]["requests_per_s"], {name: answer["latency"][name]["mean"] for name in LATENCIES}
    assert means["e2e_ms"] == pytest.approx(
        means["ttft_ms"] + means["itl_ms"] * (answer["inputs"]["osl"] - 1), rel=1e-6
    )
    assert answer["load"]["concurrency"] == pytest.approx(
        rate * means["e2e_ms"] / 1000, rel=0.1
    )  # Little's law, of a run

    compared = asked(f"compare {workload}", capsys)["best"]
    assert (compared["gpus"], compared["usd_per_hour"]) == (gpus, usd)
    assert known_of(compared) == known_of(answer["deployment"] | answer)
    assert compared["requests_per_s"] == pytest.approx(rate)
    assert {name: compared[name] for name in LATENCIES} == pytest.approx(means)

    planned = asked(f"plan {workload}", capsys)
    assert planned["gpus"] == gpus
    (own,) = planned["workloads"]
    assert planned["usd_per_month"] == pytest.approx(compared["usd_per_month"]) == pytest.approx(usd * HOURS_PER_MONTH)
    assert planned["gpus_sure"] == own["gpus_sure"]
    assert known_of(own) == known_of(answer["deployment"] | answer)
    assert own["peak_requests_per_s"] == pytest.approx(rate, rel=1e-6)
    assert {name: own["latency"][name]["mean"] for name in LATENCIES} == pytest.approx(means)

    priced = asked(f"cost {workload}", capsys)
    assert priced["deployments"][0]["gpus"] == gpus
    assert known_of(priced["deployments"][0] | priced) == known_of(answer["deployment"] | answer)
    assert priced["usd_per_hour"] == pytest.approx(usd)
    assert priced["usd_per_month"] == pytest.approx(usd * HOURS_PER_MONTH)

    simulated = asked(answer["simulate_command"].removeprefix("llmsize "), capsys)
    assert simulated["requests_per_s"] == pytest.approx(rate, rel=OF_A_RUN)
    assert {name: simulated[name]["mean"] for name in LATENCIES} == pytest.approx(means, rel=OF_A_RUN)

    drawn = asked(f"curve {workload} --no-verify", capsys)
    known = [corrections(record) for record in (answer, planned, simulated, drawn)]
    assert all(one == known[0] for one in known)
    assert bool(known[0]) == (SITUATIONS[question] in CORRECTED)


CURVES = {
    "limits on two percentiles": "-m llama-3.1-8b -g l40s --isl 1000 --osl 200 --ttft p95:500ms --itl p95:40ms --tp",
    "a limit on the answer's end": "-m Qwen/Qwen3-32B -g h100-sxm --isl 2000 --osl 300 --e2e p95:12s --tp",
    "a large model": "-m llama-3.1-70b -g h100-sxm --precision fp8 --isl 1155 --osl 211 --itl 50ms --tp",
    "experts": "-m mixtral-8x7b -g h100-sxm --isl 500 --osl 200 --itl 30ms --ttft 400ms --ep 1 --tp",
    "slots that bind": "-m llama-3.1-8b -g h100-sxm --isl 200 --osl 100 --ttft 9s --max-num-seqs 16 --tp",
}


@pytest.mark.parametrize("question", CURVES)
def test_the_best_point_of_a_curve_is_the_answer_of_estimate(question: str, capsys: Capture) -> None:
    """The heaviest load of a line is what its GPUs serve; under a large demand, estimate takes the layout of the best point."""
    of = CURVES[question]
    drawn = asked(f"curve {of} 1,2,4 --no-verify", capsys)
    best, latency = drawn["chosen"], {"ttft_ms", "itl_ms", "e2e_ms"}
    given = asked(f"estimate {of} {best['tp']} --gpus {best['gpus']} --no-verify", capsys)
    lowered = re.search(r"divided by ([0-9.]+) for even odds", given["limiting"]["detail"])  # a curve is the prediction
    margin = float(lowered[1]) if lowered else 1.0
    assert best["requests_per_s"] == pytest.approx(given["load"]["requests_per_s"] * margin, rel=1e-6)
    if lowered is None:
        means = {name: given["latency"][name]["mean"] for name in latency}
        assert {name: best[name] for name in latency} == pytest.approx(means, rel=1e-6)
    rate = 200 * best["requests_per_s_per_gpu"]
    sized = asked(f"estimate {of.removesuffix(' --tp')} --rps {rate} --no-verify", capsys)
    assert sized["deployment"]["tp"] == best["tp"]
    sized = asked(f"estimate {of} {best['tp']} --rps {best['requests_per_s']} --no-verify", capsys)
    (point,) = [one for line in drawn["lines"] for one in line["points"] if one["chosen"]]
    for name in latency if sized["deployment"]["replicas"] == 1 else ():  # not where even odds take a second replica
        assert point["bands"][name] == pytest.approx(sized["bands"][f"latency.{name}.mean"], rel=1e-3)


@pytest.mark.parametrize("gpus", [2, 3, 4, 6])
def test_a_check_passes_where_the_answer_s_own_gpus_do(gpus: int, capsys: Capture) -> None:
    """A budget of the answer's GPUs or more is kept, one of fewer is not."""
    question = ["estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "800", "--osl", "150", "--rps", "90"]
    limited = [*question, "--itl", "25ms", "--tp", "1"]
    assert run([*limited, "--quiet"]) == 0
    needed = int(capsys.readouterr().out)
    assert run([*limited, "--gpus", str(gpus), "--quiet"]) == (0 if gpus >= needed else 1)


SIZING = ("estimate", "compare", "cost", "plan")


@pytest.mark.parametrize("command", SIZING)
def test_every_answer_says_how_many_are_sure(command: str, capsys: Capture) -> None:
    """The first screen has both counts: as predicted, and with which most published runs would keep the limits."""
    sure = asked("estimate chat -g h100-sxm --no-verify", capsys)["deployment"]["gpus_sure"]
    assert run([command, "chat", "-g", "h100-sxm", "--no-verify"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(rf", {sure}(, \$[\d.,]+/h,)? in 90 % or more", said)


def test_a_plan_is_sure_with_its_reserve(capsys: Capture) -> None:
    """A spare replica is on top of the sure count as it is on top of the expected one."""
    plain, spare = (asked(f"plan chat -g h100-sxm --no-verify {more}", capsys) for more in ("", "--spare 1"))
    each = plain["workloads"][0]["gpus_per_replica"]
    assert plain["gpus_sure"] > plain["gpus"]
    assert (spare["gpus"] - plain["gpus"], spare["gpus_sure"] - plain["gpus_sure"]) == (each, each)


@pytest.mark.parametrize("more", ["--disaggregate auto", "--prefix-hit 30%"])
def test_what_nothing_is_published_of_says_so(more: str, capsys: Capture) -> None:
    """Pools and optimisations have no sure count, and the reason is said."""
    assert run(["estimate", "chat", "-g", "h100-sxm", "--no-verify", *more.split()]) == 0
    assert "confidence is not known: no published runs" in capsys.readouterr().out.lower()
    found = asked(f"estimate chat -g h100-sxm --no-verify {more}", capsys)
    of = found["disaggregated"] or found["deployment"] | found
    assert of["gpus_sure"] is None
    assert of["evidence"]["why_not"].startswith("no published runs")


@pytest.mark.parametrize("demand", ["--users 900", "--concurrency 80", "--dau 60000"])
@pytest.mark.parametrize("place", ["-g h100-sxm --tp 1", "-g l40s,h100-sxm", "-g h100-pcie --layouts pipelines"])
def test_every_kind_of_demand_has_one_answer(demand: str, place: str, capsys: Capture) -> None:
    agree(f"-m llama-3.1-8b --isl 1500 --osl 250 --itl 35ms --no-verify {demand} {place}", capsys)


@pytest.mark.parametrize("seed", range(3000, 3000 + RANDOM))
def test_a_random_question_has_one_answer(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Dense models and models of experts, with limits and without, on one GPU type or two; or none can serve it."""
    options = drawn(seed) | ({"gpu": f"{drawn(seed)['gpu']},{drawn(-seed)['gpu']}"} if seed % 2 else {})
    question = " ".join(f"--{name} {value}" for name, value in options.items()) + " --no-verify"
    if run([*shlex.split(f"estimate {question}"), "--quiet"]) == 0:
        capsys.readouterr()
        agree(question, capsys)
    else:
        assert [run(shlex.split(f"{name} {question}")) for name in ("compare", "plan", "cost")] == [1, 1, 1]


def agree(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Estimate, compare, plan, cost and sweep have the same GPUs, and the first four the same runs to rest on."""
    answer = asked(f"estimate {question}", capsys)
    compared, planned, priced = (asked(f"{name} {question}", capsys) for name in ("compare", "plan", "cost"))
    own, known = planned["workloads"][0], known_of(answer["deployment"] | answer)
    assert known_of(compared["best"]) == known_of(own) == known
    gpus = answer["deployment"]["gpus"]
    assert compared["best"]["gpus"] == planned["gpus"] == gpus
    assert gpus in {one["gpus"] for one in priced["deployments"]}
    varied = question.replace("--osl ", "--vary osl=").replace("--no-verify", "")
    rows = asked(f"sweep {varied}", capsys)["rows"]
    assert [row["gpus"] for row in rows if row["gpu"] == answer["deployment"]["gpu"]] == [gpus]
