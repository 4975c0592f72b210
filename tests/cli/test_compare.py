"""`llmsize compare`: every figure is that of `estimate`, candidates in order, and what takes the place of GPUs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from places import DATA

from sizing.cli.main import run
from sizing.report.compare import LESS
from sizing.report.parts.layouts import FewerGpus
from sizing.report.parts.screen import first_lines

Capsys = pytest.CaptureFixture[str]
GOLDEN = DATA / "golden"
MODEL = ["-m", "llama-3.1-8b", "--isl", "1000", "--osl", "200"]
LIMITS = ["--ttft", "p95:500ms", "--itl", "20ms"]
RATE = [*MODEL, *LIMITS, "--rps", "20"]
LARGE = ["-m", "llama-3.1-70b", "--isl", "1000", "--osl", "200", "--rps", "2"]


def document(capsys: Capsys, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def of(compared: dict[str, Any], gpu_id: str, precision: str) -> dict[str, Any]:
    (found,) = (c for c in compared["candidates"] if (c["gpu_id"], c["weight_precision"]) == (gpu_id, precision))
    return dict(found)


def check_as_estimated(candidate: dict[str, Any], estimate: dict[str, Any]) -> None:
    """Hold every figure of a candidate against the estimate of it alone."""
    for name in ("gpu", "gpu_id", "gpus", "replicas", "gpus_per_replica", "tp", "pp", "ep", "dp"):
        assert candidate[name] == estimate["deployment"][name], name
    for name in ("requests_per_s", "concurrency", "max_requests_per_s", "headroom"):
        assert candidate[name] == estimate["load"][name], name
    for name in (
        "usd_per_hour",
        "usd_per_million_output_tokens",
        "price_source",
        "power_w",
        "kwh_per_million_output_tokens",
    ):
        assert candidate[name] == estimate["cost"][name], name
    assert candidate["requests_per_s_per_gpu"] == estimate["throughput"]["requests_per_s_per_gpu"]
    assert candidate["weight_precision"] == estimate["inputs"]["weight_precision"]
    assert candidate["limit"] == estimate["limiting"]["limit"]
    assert candidate["verified"] == (estimate["simulation"] is not None)
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert candidate[name] == estimate["latency"][name]["mean"]
        assert candidate["bands"].get(name) == estimate["bands"].get(f"latency.{name}.mean")
        limit = estimate["inputs"]["limits"][name]
        if limit is None:
            assert candidate["limited"][name] is None
        else:
            statistic = limit["statistic"]
            assert candidate["limited"][name] == {
                "statistic": statistic,
                "ms": estimate["latency"][name][statistic],
                "limit_ms": limit["ms"],
            }
    assert candidate["bands"].get("max_requests_per_s") == estimate["bands"].get("load.max_requests_per_s")


@pytest.mark.parametrize(
    "extra", [[], ["--no-verify"], ["--no-verify", "--conservative"], ["--no-verify", "--headroom", "50%"]]
)
def test_figures_are_those_of_estimate(extra: list[str], capsys: Capsys) -> None:
    gpus, precisions = ("h100-sxm", "l40s", "a100-sxm-80gb"), ("fp8", "bf16")
    compared = document(capsys, "compare", *RATE, "-g", ",".join(gpus), "--precision", ",".join(precisions), *extra)
    assert len(compared["candidates"]) == 6
    feasible = 0
    for gpu in gpus:
        for precision in precisions:
            candidate = of(compared, gpu, precision)
            code = 0 if candidate["feasible"] else 1
            estimate = document(capsys, "estimate", *RATE, "-g", gpu, "--precision", precision, *extra, code=code)
            if candidate["feasible"]:
                check_as_estimated(candidate, estimate)
                feasible += 1
    assert feasible >= 3


def test_a_closed_loop_is_compared_too(capsys: Capsys) -> None:
    asked = [*MODEL, "--ttft", "3s", "--concurrency", "200"]
    compared = document(capsys, "compare", *asked, "-g", "h100-sxm,l40s", "--precision", "fp8", "--no-verify")
    for gpu in ("h100-sxm", "l40s"):
        estimate = document(capsys, "estimate", *asked, "-g", gpu, "--precision", "fp8", "--no-verify")
        check_as_estimated(of(compared, gpu, "fp8"), estimate)
    assert compared["demand"]["concurrency"] == 200


def test_what_cannot_serve_the_demand_stays_with_the_reason_that_estimate_gives(capsys: Capsys) -> None:
    asked = [*LARGE, "--tp", "1", "--no-verify"]
    compared = document(capsys, "compare", *asked, "-g", "l4,h200-sxm", "--precision", "fp8")
    assert [c["feasible"] for c in compared["candidates"]] == [True, False]
    failed = of(compared, "l4", "fp8")
    alone = document(capsys, "estimate", *asked, "-g", "l4", "--precision", "fp8", code=1)
    assert failed["reason"] == alone["limiting"]["detail"] and failed["limit"] == "memory"
    assert failed["gpus"] is failed["ttft_ms"] is failed["usd_per_hour"] is failed["assumed"] is None
    assert compared["best"] == of(compared, "h200-sxm", "fp8")


def test_none_feasible_is_a_result(capsys: Capsys) -> None:
    compared = document(capsys, "compare", *LARGE, "--tp", "1", "-g", "l4", "--no-verify", code=1)
    assert compared["feasible"] is False and compared["best"] is None and len(compared["candidates"]) == 1
    assert run(["compare", *LARGE, "--tp", "1", "-g", "l4", "--no-verify"]) == 1
    assert "Infeasible" in capsys.readouterr().out


def test_a_precision_that_the_gpu_cannot_multiply_is_noted_as_weight_only(capsys: Capsys) -> None:
    compared = document(capsys, "compare", *RATE, "-g", "a100-sxm-80gb,h100-sxm", "--precision", "fp8", "--no-verify")
    assert "weight-only" in of(compared, "a100-sxm-80gb", "fp8")["notes"][0]
    assert of(compared, "h100-sxm", "fp8")["notes"] == []


@pytest.mark.parametrize(("sort", "key"), [("gpus", "gpus"), ("cost", "usd_per_hour"), ("energy", "power_w")])
def test_candidates_are_in_the_order_asked_for(sort: str, key: str, capsys: Capsys) -> None:
    asked = ["compare", *RATE, "-g", "h100-sxm,l40s,a100-sxm-80gb,b200", "--precision", "fp8,bf16", "--no-verify"]
    compared = document(capsys, *asked, "--sort", sort)
    values = [c[key] for c in compared["candidates"] if c["feasible"]]
    assert len(set(values)) > 2 and values == sorted(values)
    assert compared["sort"] == sort and compared["best"] == compared["candidates"][0]
    feasible = [c["feasible"] for c in compared["candidates"]]
    assert feasible == sorted(feasible, reverse=True)


def test_the_order_is_the_objective_unless_stated(capsys: Capsys) -> None:
    asked = ["compare", *RATE, "-g", "h100-sxm,l40s", "--no-verify"]
    assert document(capsys, *asked)["sort"] == "cost"  # several types with prices
    assert document(capsys, "compare", *RATE, "-g", "h100-sxm", "--no-verify")["sort"] == "gpus"
    assert document(capsys, *asked, "--objective", "energy")["sort"] == "energy"
    assert document(capsys, *asked, "--objective", "energy", "--sort", "cost")["sort"] == "cost"


def profile_without_price(folder: Path) -> str:
    """A copy of a GPU's profile with no prices."""
    from sizing.catalog import profiles

    path = profiles.load_gpu("h100-sxm").path
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("prices:"))
    after = (i for i in range(start + 1, len(lines)) if lines[i] and lines[i][0] not in " #-")
    kept = [*lines[:start], "prices: []", *lines[next(after, len(lines)) :]]
    copy = folder / "unpriced.yaml"
    copy.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return str(copy)


def test_what_has_no_price_comes_last_by_cost_and_says_so(tmp_path: Path, capsys: Capsys) -> None:
    asked = ["compare", *RATE, "-g", f"{profile_without_price(tmp_path)},l40s", "--precision", "fp8", "--no-verify"]
    by_gpus, by_cost = document(capsys, *asked), document(capsys, *asked, "--sort", "cost")
    assert [c["gpu_id"] for c in by_gpus["candidates"]] == ["unpriced", "l40s"]
    assert [c["gpu_id"] for c in by_cost["candidates"]] == ["l40s", "unpriced"]
    unpriced = by_cost["candidates"][1]
    assert unpriced["usd_per_hour"] is unpriced["usd_per_million_tokens"] is unpriced["price_source"] is None
    assert run([*asked, "--sort", "cost"]) == 0
    assert "no price" in capsys.readouterr().out


def test_tokens_of_prompts_and_outputs_share_the_cost(capsys: Capsys) -> None:
    asked = ["compare", *RATE, "-g", "h100-sxm", "--price", "3.6", "--no-verify"]
    (candidate,) = document(capsys, *asked)["candidates"]
    # $3.6/h a GPU is $0.001/s; 20 requests/s of 1,200 tokens are 24,000 tokens/s; a million take 41.67 s: $0.04167 a GPU.
    assert candidate["usd_per_million_tokens"] == pytest.approx(candidate["gpus"] * 0.001 / 24_000 * 1e6, rel=1e-6)
    # Of 20 x 200 output tokens/s: 6 times as much.
    assert candidate["usd_per_million_output_tokens"] == pytest.approx(6 * candidate["usd_per_million_tokens"])


# What takes the place of GPUs


@pytest.mark.parametrize(("gpus", "verify"), [(4, []), (4, ["--no-verify"]), (8, ["--no-verify"])])
def test_gpus_take_the_place_of_as_many_of_their_own(gpus: int, verify: list[str], capsys: Capsys) -> None:
    asked = [*MODEL, *LIMITS, "--precision", "fp8", *verify]
    compared = document(capsys, "compare", *asked, "-g", "h100-sxm,a100-sxm-80gb", "--replace", f"{gpus}xh100-sxm")
    served = document(capsys, "estimate", *asked, "-g", "h100-sxm", "--gpus", str(gpus))
    old, own, other = compared["replaces"], of(compared, "h100-sxm", "fp8"), of(compared, "a100-sxm-80gb", "fp8")
    assert old["requests_per_s"] == served["load"]["requests_per_s"]
    assert (old["gpus"], old["gpus_used"]) == (gpus, served["deployment"]["gpus"])
    assert compared["demand"]["requests_per_s"] == old["requests_per_s"]
    assert own["gpus"] == gpus and own["gpus_per_replaced_gpu"] == 1
    # An A100 has 312 dense BF16 TFLOPS and 2.04 TB/s, an H100 989 (1,979 in FP8) and 3.35: between 1.6 and 6.3 for each.
    assert 1.6 <= other["gpus_per_replaced_gpu"] <= 6.3
    assert other["gpus_per_replaced_gpu"] == other["gpus"] / gpus
    again = document(capsys, "estimate", *asked, "-g", "a100-sxm-80gb", "--rps", repr(old["requests_per_s"]))
    assert again["deployment"]["gpus"] == other["gpus"]


def test_the_workloads_own_demand_and_growth_give_way_to_what_is_replaced(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "model: llama-3.1-8b\nprecision: fp8\ntokens: {isl: 1000, osl: 200}\nlimits: {itl: 20ms}\n"
        "demand: {requests_per_s: 3}\nplanning: {headroom: 100%, poisson_percentile: 99%}\n"
    )
    asked = ["compare", str(path), "-g", "h100-sxm", "--no-verify", "--replace", "4xh100-sxm"]
    compared = document(capsys, *asked)
    assert compared["candidates"][0]["gpus"] == 4
    assert compared["demand"]["requests_per_s"] == compared["replaces"]["requests_per_s"] > 3
    # Growth that is asked for here comes on top: half as much again takes 6.
    assert document(capsys, *asked, "--headroom", "50%")["candidates"][0]["gpus"] == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*MODEL], ["--rps", "--replace"]),
        ([*MODEL, "--gpus", "8"], ["--rps", "--replace"]),
        ([*RATE, "--replace", "8xh100-sxm"], ["--rps", "--replace"]),
        ([*MODEL, "--replace", "8"], ["--replace", "8xh100-sxm"]),
        ([*MODEL, "--replace", "0xh100-sxm"], ["--replace"]),
        ([*MODEL, "--replace", "8xh100-sxm,l4"], ["--replace", "one type"]),
        ([*MODEL, "--replace", "8xh100-sxn"], ["--replace", "did you mean h100-sxm?"]),
        (["-m", "llama-3.1-70b", *MODEL[2:], "--replace", "1xl4"], ["1 x L4", "nothing"]),
        ([*RATE, "--sort", "price"], ["--sort", "gpus, cost, energy"]),
        ([*RATE, "--jobs", "0"], ["--jobs"]),
        ([*RATE, "--format", "jsonl"], ["--format", "csv"]),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: list[str], capsys: Capsys) -> None:
    assert run(["compare", *arguments, "-g", "h100-sxm"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and all(word in err for word in words), err


def test_mistakes_come_out_together(capsys: Capsys) -> None:
    assert run(["compare", *MODEL, "--replace", "8", "--sort", "x", "--format", "y", "--tp", "0"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 4 and all(option in err for option in ("--replace", "--sort", "--format", "--tp"))


# Forms


def test_the_result_does_not_depend_on_the_processes(capsys: Capsys) -> None:
    asked = ["compare", *RATE, "-g", "h100-sxm,l40s", "--precision", "fp8,bf16", "--json"]
    texts = set()
    for jobs in ("1", "3"):
        assert run([*asked, "--jobs", jobs]) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1


@pytest.mark.parametrize("name", ["table", "markdown"])
def test_every_candidate_is_in_every_form(name: str, capsys: Capsys) -> None:
    asked = ["compare", *LARGE, "--tp", "1", "-g", "l4,h200-sxm,mi300x", "--precision", "fp8", "--no-verify"]
    assert run([*asked, "--format", name]) == 0
    out = capsys.readouterr().out
    assert all(gpu in out for gpu in ("L4", "H200", "MI300X")) and "GiB more per GPU" in " ".join(out.split())


def form(value: Any) -> Any:
    """The form of a document: predictions change as constants are refitted, and are held against `estimate` above."""
    if isinstance(value, dict):
        return {name: form(each) for name, each in value.items() if name not in ("version", "assumptions")}
    if isinstance(value, list):
        return [form(each) for each in value]
    return "a number" if isinstance(value, float) else value


def golden(name: str, text: str) -> str:
    """The kept text of a golden file; LLMSIZE_GOLDEN=write keeps this one instead."""
    path = GOLDEN / name
    if os.environ.get("TESTS_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


SMALL = ["compare", *LARGE, "-g", "h100-sxm,l4", "--tp", "2", "--precision", "fp8", "--ttft", "p95:2s", "--no-verify", "--price", "2"]  # fmt: skip


def test_the_json_is_as_kept(capsys: Capsys) -> None:
    text = json.dumps(form(document(capsys, *SMALL)), indent=1) + "\n"
    assert text == golden("compare.json", text)


def test_the_csv_is_as_kept(capsys: Capsys) -> None:
    assert run([*SMALL, "--format", "csv"]) == 0
    read = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert len(read) == 3 and len({len(row) for row in read}) == 1
    cells = [["a number" if re.fullmatch(r"[0-9]+\.[0-9]+", cell) else cell for cell in row] for row in read]
    text = "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in cells)
    assert text == golden("compare.csv", text)


def test_the_price_of_each_type_stands_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", "-m", "llama-3.1-8b", "--isl", "500", "--osl", "100", "--rps", "5", "--no-verify", "-g"]
    assert run([*asked, "h100-sxm,l40s"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "h100-sxm $6.16 (7)" in said and "l40s $2.62 (1)" in said
    assert run([*asked, "h100-sxm,l40s", "--price", "2"]) == 0
    assert "$2.00 per GPU-hour" in " ".join(capsys.readouterr().out.split())


def test_a_screen_counts_the_candidates_that_cannot_serve(capsys: Capsys) -> None:
    asked = ["compare", *LARGE, "-g", "h100-sxm,l40s,rtx-3060", "--precision", "fp8", "--tp", "2", "--no-verify"]
    found = document(capsys, *asked)
    unable = [c["gpu"] for c in found["candidates"] if not c["feasible"]]
    assert unable == ["RTX 3060 12GB"] and run(asked) == 0
    assert "1 candidate cannot serve this: --verbose" in capsys.readouterr().out


def test_a_layout_that_needs_less_is_named_with_its_stages_and_the_others_with_what_they_are() -> None:
    stages = FewerGpus("4 x TP4 PP2", 32, 84.0, 700.0, 30.0, "pipelines")
    assert stages.words() == "about 32 GPUs = 4 x TP4 PP2; --layouts pipelines"
    *_, more = first_lines("Fewer", ["one", "two", "three"], "GPU type", 1, LESS)
    assert more.text == "2 more GPU types with a layout that needs less: --verbose"


def test_the_screen_says_what_binds_each_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", "chat", "-g", "b200,h100-sxm", "--itl", "46ms", "--no-verify", "--jobs", "1"]
    assert run([*asked, "--json"]) == 0
    limits = {each["gpus"]: each["limit"] for each in json.loads(capsys.readouterr().out)["candidates"]}
    assert run(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    (heading,) = (line for line in lines if line.startswith("GPUs"))
    assert heading.endswith("binds") and max(map(len, lines)) <= 80
    assert len(set(limits.values())) > 1
    for gpus, limit in limits.items():
        assert any(line.split()[:1] == [str(gpus)] and line.lower().endswith(limit) for line in lines)
