"""`llmsize whatif`: the document, its agreement with `estimate`, its order, its laws, and how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import re
from functools import cache
from typing import Any

import pytest

from sizing.catalog import shelf
from sizing.cli.main import run
from sizing.cli.whatif import OPTIONS
from sizing.formats.text import SCREEN
from sizing.specs.facts import OptimisationFacts

RAG = ("rag", "-g", "h100-sxm")
OPTION_KEYS = {
    "name", "gpus", "requests_per_s_per_gpu", "ttft_ms", "itl_ms", "usd_per_million_output_tokens", "needs", "risk",
    "sensitivity",
}  # fmt: skip


@cache
def whatif(*arguments: str, code: int = 0) -> Any:
    """The document of a question, asked once."""
    return printed(["whatif", *arguments, "--json"], code)


@cache
def estimate(*arguments: str) -> Any:
    return printed(["estimate", *arguments, "--json"], 0)


def printed(arguments: list[str], code: int) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(arguments) == code
    return json.loads(out.getvalue())


def gpus_and_ttft_ms(answer: dict[str, Any]) -> tuple[int, float]:
    """What an estimate answers: of its pools, where they were asked for."""
    pools = answer["disaggregated"]
    if pools is not None:
        return pools["gpus"], pools["ttft_ms"]["mean"]
    return answer["deployment"]["gpus"], answer["latency"]["ttft_ms"]["mean"]


def key(one: dict[str, Any]) -> tuple[float, float, float]:
    return (one["gpus"], one["usd_per_hour"], -one["max_requests_per_s_per_gpu"])


def test_the_document() -> None:
    found = whatif(*RAG)
    assert found["schema"] == "llmsize.whatif/1"
    assert {"base", "options", "best", "inputs", "assumptions", "not_possible"} <= set(found)
    assert all(set(option) >= OPTION_KEYS for option in found["options"])
    assert all(option["needs"] and option["risk"] and option["source"] for option in found["options"])


def test_the_base_is_what_estimate_answers() -> None:
    base, answer = whatif(*RAG)["base"], estimate(*RAG)
    assert base["gpus"] == answer["deployment"]["gpus"]
    assert base["ttft_ms"] == answer["latency"]["ttft_ms"]["mean"]
    assert base["itl_ms"] == answer["latency"]["itl_ms"]["mean"]
    assert base["usd_per_million_output_tokens"] == answer["cost"]["usd_per_million_output_tokens"]
    assert base["verified"]


def test_each_option_and_the_best_are_what_estimate_answers_to_their_options() -> None:
    """No formulas of its own: what `whatif` says of an option is the estimate with it on."""
    found = whatif(*RAG)
    for option in found["options"]:
        answer = estimate(*RAG, "--no-verify", *option["options"].split())
        assert (option["gpus"], option["ttft_ms"]) == gpus_and_ttft_ms(answer), option["name"]
    best = found["best"]
    answer = estimate(*RAG, *best["options"].split())
    assert best["answer"]["gpus"] == answer["deployment"]["gpus"]
    assert best["answer"]["itl_ms"] == answer["latency"]["itl_ms"]["mean"]


def test_options_are_ranked_by_gpus_then_cost_then_what_a_gpu_serves() -> None:
    options = whatif("chat", "-g", "h100-sxm", "--no-verify")["options"]
    assert [key(one) for one in options] == sorted(key(one) for one in options)
    assert len({one["gpus"] for one in options}) > 1  # so that the order says something


def test_the_best_together_is_no_worse_than_any_alone() -> None:
    found = whatif("chat", "-g", "h100-sxm", "--no-verify")
    best = found["best"]["answer"]
    assert all(key(best)[:2] <= key(one)[:2] for one in found["options"])
    assert found["best"]["gpus_saved"] == found["base"]["gpus"] - best["gpus"]


def test_the_best_together_has_no_change_that_its_size_can_do_without() -> None:
    """A change that saves no GPU is not recommended, least of all one that costs quality."""
    found = whatif(*RAG, "--no-verify")
    alone, best = {one["name"]: one["options"].split() for one in found["options"]}, found["best"]
    assert len(best["names"]) > 1 and "sparsity" not in best["names"]
    for name in best["names"]:
        others = [word for other in best["names"] if other != name for word in alone[other]]
        assert estimate(*RAG, "--no-verify", *others)["deployment"]["gpus"] > best["answer"]["gpus"], name


def test_at_most_one_of_a_group_is_in_a_combination() -> None:
    trials = shelf.only(OptimisationFacts).trials
    groups = [trials[name].group for name in whatif(*RAG, "--no-verify")["best"]["names"]]
    assert len(groups) == len(set(groups)) > 1


def test_sensitivity_is_a_step_either_way_and_moves_the_right_way() -> None:
    options = {one["name"]: one for one in whatif(*RAG, "--no-verify")["options"]}
    for name, values in (("eagle3", (0.65, 0.85)), ("prefix-caching", (0.4, 0.6))):
        low, high = options[name]["sensitivity"]
        assert (low["value"], high["value"]) == pytest.approx(values)
        middle = options[name]["max_requests_per_s_per_gpu"]
        assert low["max_requests_per_s_per_gpu"] < middle < high["max_requests_per_s_per_gpu"]
    assert options["fp8-weights"]["sensitivity"] == []


def test_what_is_on_already_is_not_tried() -> None:
    asked = ("--prefix-hit", "0.3", "--speculative", "eagle3", "--kv-precision", "fp8", "--precision", "fp8")
    found = whatif(*RAG, *asked, "--no-verify")
    names = {one["name"] for one in (*found["options"], *found["not_possible"])}
    assert not names & {"prefix-caching", "eagle3", "fp8-cache", "fp8-weights", "int8-weights", "mtp"}
    assert "int4-weights" in names


def test_what_a_model_or_card_lacks_is_not_tried_or_said() -> None:
    found = whatif("rag", "-g", "mi300x", "--no-verify")
    assert "mtp" not in {one["name"] for one in found["options"]}  # a model without latent attention
    assert any(one["name"] == "sparsity" and "no sparse products" in one["reason"] for one in found["not_possible"])


def test_modules_of_a_checkpoint_are_tried_where_its_config_states_them() -> None:
    """Whatever its attention: MiMo's is grouped; Kimi K2.5's is latent, and its config says that there are none."""
    for model, tp, has in (("mimo-7b", "1", True), ("kimi-k2.5", "8", False)):
        arguments = ("-m", model, "-g", "h200-sxm", "--isl", "500", "--osl", "100", "--rps", "1", "--tp", tp)
        found = whatif(*arguments, "--no-verify")
        assert ("mtp" in {one["name"] for one in (*found["options"], *found["not_possible"])}) is has


def test_with_one_token_out_nothing_is_drafted() -> None:
    arguments = ("-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "500", "--osl", "1", "--rps", "100", "--no-verify")
    found = whatif(*arguments)
    assert "eagle3" not in {one["name"] for one in (*found["options"], *found["not_possible"])}
    assert all(one["itl_ms"] is None for one in found["options"])


def test_an_optimisation_may_make_feasible_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """141 GB of weights do not fit a card of 80 GB; in FP8 they need two still, in 4 bits they fit one."""
    arguments = ("-m", "llama-3.1-70b", "-g", "h100-sxm", "--isl", "1000", "--osl", "100", "--rps", "0.1", "--tp", "1")
    found = whatif(*arguments)
    assert found["base"] is None
    assert {one["name"] for one in found["options"]} >= {"int4-weights"}
    assert found["best"]["gpus_saved"] is None
    assert run(["whatif", *arguments, "--no-verify"]) == 0
    assert ", with calibrated INT4 weights; infeasible" in capsys.readouterr().out


def test_where_nothing_helps_it_ends_infeasible() -> None:
    arguments = (
        "-m",
        "llama-3.1-70b",
        "-g",
        "h100-sxm",
        "--isl",
        "2000",
        "--osl",
        "500",
        "--rps",
        "3",
        "--ttft",
        "10ms",
    )
    found = whatif(*arguments, code=1)
    assert (found["base"], found["options"], found["best"]) == (None, [], None)
    assert found["not_possible"]


@pytest.mark.parametrize("form", ["table", "csv", "markdown"])
def test_every_format(capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert run(["whatif", *RAG, "--no-verify", "--format", form]) == 0
    out = capsys.readouterr().out
    assert "prefix-caching" in out
    assert "fp8-weights" in out
    if form == "table":
        assert max(map(len, out.splitlines())) <= 80


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["whatif", "rag", "-g", "h1000"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_every_trial_is_made_of_options_that_exist() -> None:
    known = {option.name for option in OPTIONS}
    for name, trial in shelf.only(OptimisationFacts).trials.items():
        assert set(trial.options) <= known, name
        assert ("{value}" in "".join(map(str, trial.options.values()))) == (trial.assumed is not None), name


def test_what_none_does_alone_all_together_may() -> None:
    """A prompt of 2,000 tokens at TP4 within 95 ms: too long with any one of them, not with one of each group."""
    arguments = ("-m", "llama-3.1-70b", "-g", "h100-sxm", "--tp", "4", "--isl", "2000", "--osl", "100", "--rps", "0.5")
    found = whatif(*arguments, "--ttft", "95ms", "--no-verify")
    assert (found["base"], found["options"]) == (None, [])
    assert set(found["best"]["names"]) == {"fp8-weights", "prefix-caching"}, "no others are needed"
    assert found["best"]["answer"]["ttft_ms"] <= 95


def test_trials_are_held_against_the_closed_form_that_is_shown_beside_the_simulated_base() -> None:
    """One that changes nothing saves nothing, whatever the simulation of the base adds."""
    asked = (
        "-m",
        "qwen3-8b",
        "--task",
        "embed",
        "-g",
        "h100-sxm",
        "--isl",
        "512",
        "--rps",
        "200",
        "--ttft",
        "p95:100ms",
    )
    found = whatif(*asked)
    closed = found["base_closed_form"]
    assert found["base"]["verified"]
    assert not closed["verified"]
    assert closed["gpus"] == printed(["estimate", *asked, "--no-verify", "--json"], 0)["deployment"]["gpus"]
    for option in found["options"]:
        assert option["gpus_saved"] == closed["gpus"] - option["gpus"], option["name"]
    assert whatif(*asked, "--no-verify")["base_closed_form"] is None


def test_a_router_that_knows_caches_is_tried_where_turns_come_at_random() -> None:
    turns = (
        "-m",
        "llama-3.1-70b",
        "-g",
        "h100-sxm",
        "--precision",
        "fp8",
        "--isl",
        "600",
        "--osl",
        "250",
        "--rps",
        "20",
    )
    turns = (*turns, "--turns", "8", "--no-verify")
    found = whatif(*turns)
    (affinity,) = [option for option in found["options"] if option["name"] == "affinity"]
    asked = printed(["estimate", *turns, "--prefix-routing", "affinity", "--json"], 0)
    assert affinity["gpus"] == asked["deployment"]["gpus"] < found["base"]["gpus"]
    assert found["inputs"]["conversation"]["hit"] == pytest.approx(
        printed(["estimate", *turns, "--json"], 0)["inputs"]["conversation"]["hit"]
    )
    others = whatif(*turns, "--prefix-routing", "affinity"), whatif(*RAG)
    assert all(option["name"] != "affinity" for other in others for option in other["options"])


def test_all_rows_of_the_table_are_by_one_method(capsys: pytest.CaptureFixture[str]) -> None:
    """A simulated answer beside options by the closed form would show as a gain what is a change of method."""
    found = whatif(*RAG)
    assert run(["whatif", *RAG]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    for name, closed in (("as it is", found["base_closed_form"]), ("best together", found["best_closed_form"])):
        assert not closed["verified"]
        row = rf"{name} {closed['gpus']} {closed['layout']} [0-9.,]+ {closed['limited']['ttft_ms']['ms']:.3g} ms"
        assert re.search(row, screen), row
    assert "; all rows in closed form" in screen


def test_the_headline_says_what_it_takes_for_granted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "prefix-caching" in whatif(*RAG)["best"]["names"]
    run(["whatif", *RAG])
    headline, line = capsys.readouterr().out.split("--prefix-hit")[0].split("\n", 1)
    assert headline.startswith("fp8-weights: 2 GPUs instead of 3")
    line = " ".join(line.split())
    assert " GPU instead of 3, if " in line or " GPUs instead of 3, if " in line, line
    assert "if the share of a prompt found in cache is 0.5" in line
    plain = whatif(*RAG)["unconditional"]
    assert plain["names"] == ["fp8-weights"] and plain["gpus_saved"] == 1


def test_an_option_that_only_shortens_a_latency_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "chat", "-g", "h100-sxm", "--no-verify"
    found = whatif(*asked)
    eagle, base = next(option for option in found["options"] if option["name"] == "eagle3"), found["base"]
    assert not eagle["helps"] and eagle["gpus"] == base["gpus"] and eagle["itl_ms"] < base["itl_ms"]
    assert run(["whatif", *asked]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert f"no GPU fewer, ITL {eagle['itl_ms']:.3g} ms in place of {base['itl_ms']:.3g} ms" in screen


def test_an_option_that_is_named_for_a_latency_says_what_it_makes_worse(capsys: pytest.CaptureFixture[str]) -> None:
    length = "--isl", "2000", "--osl", "300", "--rps", "30", "--itl", "p99:25ms"
    asked = "-m", "llama-3.1-8b", "-g", "h100-sxm", *length, "--no-verify"
    found = whatif(*asked)
    assert run(["whatif", *asked]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    (said,) = re.findall(r"Faster (.*?) Needs", screen)
    one, base = next(each for each in found["options"] if said.startswith(each["options"])), found["base"]
    before, _, worse = said.partition("; but ")
    most = [of["max_requests_per_s_per_gpu"] * of["gpus"] for of in (one, base)]
    assert "p99 ITL" in before and "TTFT" not in before
    assert one["ttft_ms"] > 1.05 * base["ttft_ms"] and most[0] < 0.95 * most[1]
    assert f"TTFT {one['ttft_ms']:.3g} ms in place of {base['ttft_ms']:.3g} ms" in worse
    assert f"at most {most[0]:.3g} requests/s in place of {most[1]:.3g}" in worse.replace(".0", "")


def test_a_latency_is_in_the_statistic_of_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "chat", "-g", "h100-sxm", "--no-verify"
    found = whatif(*asked)
    assert run(["whatif", *asked]) == 0
    (row,) = re.findall(r"^as it is .*$", capsys.readouterr().out, re.M)
    ttft = found["base"]["limited"]["ttft_ms"]
    assert ttft["statistic"] == "p95" and ttft["ms"] > found["base"]["ttft_ms"]
    assert f" {ttft['ms']:.0f} ms " in row


def test_a_count_beyond_sense_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    length = "--isl", "2000", "--osl", "300", "--rps", "100", "--itl", "30ms"
    asked = "-m", "llama-3.1-405b", "-g", "a100-sxm-80gb", *length, "--no-verify"
    found = whatif(*asked)
    assert found["best"]["answer"]["gpus"] > found["most_sensible_gpus"] == 1024
    assert run(["whatif", *asked]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Feasible only in theory with nvfp4-weights + eagle3: ") and "more than the 1,024" in text


def test_a_headline_leads_with_what_saves_and_each_change_of_the_best_has_a_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = "chat", "-g", "h100-sxm", "--no-verify"
    best, base = whatif(*asked)["best"], whatif(*asked)["base"]
    assert run(["whatif", *asked]) == 0
    screen = capsys.readouterr().out
    assert "as before" not in screen and screen.count("\n") <= SCREEN
    assert all(re.search(rf"^{name} ", screen, re.M) for name in best["names"])
    most = base["max_requests_per_s_per_gpu"] * base["gpus"]
    (row,) = re.findall(r"^as it is .*$", screen, re.M)
    assert f" {most:.3g} " in row, "requests/s is of all GPUs, as on other screens"
    assert "sparsity" not in best["names"] or "check the quality" in " ".join(screen.split())
