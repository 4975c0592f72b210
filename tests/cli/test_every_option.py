"""Every option of every command that asks a question changes what is answered, or is refused.

What merely repeats the question (inputs, assumptions, commands to repeat it) is left out of the comparison. An option is tried
where it has something to act on: `WITH` says where that is not the plain question.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sizing.answers import brief, whatif
from sizing.cli.curve import CURVE_OPTIONS
from sizing.cli.main import run
from sizing.cli.options import COST_OPTIONS, MEMORY_OPTIONS, PLAN_OPTIONS, STEP_OPTIONS
from sizing.cli.report import OPTIONS as REPORT_OPTIONS
from sizing.cli.simulate import OPTIONS as SIMULATE_OPTIONS
from sizing.cli.whatif import OPTIONS as WHATIF_OPTIONS
from sizing.formats import view
from sizing.question.options import QUESTION_OPTIONS, SWITCH, WORKLOAD_OPTIONS, Field
from sizing.report.page import chapters

ECHOES = frozenset({"inputs", "simulate_command", "command", "assumptions", "explanations", "evidence"})
MODEL, EXPERTS = ("-m", "llama-3.1-8b"), ("-m", "qwen3-30b-a3b")
LENGTHS = ("--isl", "1000", "--osl", "200")
# Commands with what they need, the options that they share, and the demand that they are asked for.
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[Field, ...], tuple[str, ...]]] = {
    "memory": (("-g", "h100-sxm"), MEMORY_OPTIONS, ()),
    "step": (("-g", "h100-sxm", "--prefill", "700", "--decode", "8", "--context", "900"), STEP_OPTIONS, ()),
    "estimate": (("-g", "h100-sxm", *LENGTHS, "--no-verify"), QUESTION_OPTIONS, ("--rps", "300")),
    "compare": (("-g", "h100-sxm", *LENGTHS, "--no-verify", "--jobs", "1"), QUESTION_OPTIONS, ("--rps", "300")),
    "plan": (("-g", "h100-sxm", *LENGTHS, "--no-verify"), (*WORKLOAD_OPTIONS, *PLAN_OPTIONS), ("--rps", "300")),
    "cost": (("-g", "h100-sxm", *LENGTHS, "--no-verify"), (*WORKLOAD_OPTIONS, *COST_OPTIONS), ("--rps", "300")),
    "sweep": (
        ("-g", "h100-sxm", "--isl", "1000", "--vary", "osl=200", "--jobs", "1"),
        QUESTION_OPTIONS,
        ("--rps", "300"),
    ),
    "deploy": (("-g", "h100-sxm", *LENGTHS, "--no-verify"), QUESTION_OPTIONS, ("--rps", "300")),
    "whatif": (("-g", "h100-sxm", *LENGTHS, "--no-verify"), WHATIF_OPTIONS, ("--rps", "300")),
    "report": (("-g", "h100-sxm", *LENGTHS, "--no-verify", "-o", "-"), REPORT_OPTIONS, ("--rps", "300")),
    "curve": (
        ("-g", "h100-sxm", *LENGTHS, "--tp", "1,2,4", "--concurrency", "8,900", "--no-verify"),
        CURVE_OPTIONS,
        (),
    ),
    "simulate": (
        ("-g", "h100-sxm", *LENGTHS, "--requests", "100"),
        tuple(option for option in SIMULATE_OPTIONS if option.panel not in ("Teaching simulator", "Output")),
        ("--rps", "60"),
    ),
    "roofline": (("-g", "h100-sxm", "--batch", "1,64", "--prefill", "700"), STEP_OPTIONS, ()),
}
VALUES = {
    "task": "embed", "precision": "fp8", "kv_precision": "fp8", "engine": "sglang", "tp": "2", "pp": "2", "ep": "2", "dp": "2",
    "cp": "2", "dcp": "2", "all2all_backend": "low_latency", "expert_imbalance": "3", "redundant_experts": "32", "memory_fraction": "50%",
    "max_model_len": "120000", "max_num_seqs": "2", "max_num_batched_tokens": "300", "cuda_graphs_gib": "9",
    "speculative": "eagle3:3@0.75", "sparsity": "2:4", "prefix_hit": "50%", "prefix_shared": "100", "prefix_distinct": "9000",
    "turns": "4", "think_time": "400s", "prefix_routing": "affinity", "lora": "4x64", "images": "1x512x512",
    "kv_offload": "50%", "isl": "1500", "osl": "300", "isl_max": "110000", "osl_max": "110000", "rps": "9", "users": "5000",
    "requests_per_session": "3", "session_length": "1min", "concurrency": "30", "dau": "9m", "requests_per_user": "9",
    "active_hours": "3", "peak_to_mean": "4", "mode": "offline", "gpus": "2", "mean_rps": "700", "profile": "office",
    "percentile": "95%", "ttft": "60ms", "itl": "9ms", "e2e": "700ms", "max_utilisation": "30%", "headroom": "80%",
    "set": "limits.itl=9ms", "price": "9", "provider": "lambda", "confidence": "70%",
    "documents": "9m", "within": "3h",
    # engines' own
    "kv_cache_bytes": "9GB", "max_total_tokens": "9000", "cpu_offload_gb": "9", "offload_backend": "prefetch", "pp_layers": "20,12",
    "limit_mm_per_prompt": "image=0,video=0", "mamba_full_memory_ratio": "0.3", "max_mamba_cache_size": "40",
    # plans, ways to pay
    "spare": "1", "availability": "99.9%", "node_availability": "99%", "mtbf": "90d", "mttr": "8h", "failures": "node",
    "min_replicas": "2", "spot": "50%", "price_uncertainty": "20%", "growth": "5%", "lead_time": "12w", "start": "2026-01", "until": "2027-12", "months": "12", "own": "hgx-h100", "cloud": "lambda", "api": "1,3", "split": "3",
    # simulations
    "policy": "static", "replicas": "2", "slots": "3", "batch_size": "3", "batch_window": "900ms", "requests": "50",
    "arrivals": "even", "isl_std": "300", "osl_std": "90", "length_shape": "normal", "length_ratio": "50%",
    "routing": "round-robin", "seed": "3", "limit": "1s",
}  # fmt: skip
WITH: dict[str, tuple[str, ...]] = {
    "requests_per_session": ("--users", "4000", "--session-length", "5min"),
    "session_length": ("--users", "4000", "--requests-per-session", "3"),
    "closed_loop": ("--concurrency", "300"),
    "documents": ("--within", "6h"),
    "within": ("--documents", "9m"),
    "think_time": ("--users", "90000"),
    "peak_to_mean": ("--dau", "9m"),
    "requests_per_user": ("--dau", "9m"),
    "active_hours": ("--dau", "9m"),
    "profile": ("--dau", "9m"),
    "mean_rps": ("--peak-to-mean", "2"),
    "prefix_shared": ("--prefix-hit", "0.5", "--kv-cache-memory-bytes", "1GB"),
    "prefix_distinct": ("--prefix-hit", "0.5", "--prefix-shared", "100"),
    "prefix_routing": (
        "--prefix-hit",
        "0.5",
        "--prefix-shared",
        "300",
        "--prefix-distinct",
        "9000",
        "--tp",
        "1",
        "--pp",
        "1",
    ),
    "all2all_backend": ("--dp", "2", "--ep", "2", "--tp", "1"),
    **dict.fromkeys(("expert_imbalance", "redundant_experts"), ("--ep", "2", "--tp", "2")),
    "ep": ("--tp", "4"),
    **dict.fromkeys(("isl_max", "osl_max", "max_model_len"), ("--memory-fraction", "35%")),
    **dict.fromkeys(("limit_mm_per_prompt", "language_model_only"), ("--memory-fraction", "35%")),
    "dp": ("--tp", "2"),
    "pp_layers": ("--pp", "2"),
    "offload_backend": ("--cpu-offload-gb", "4"),
    "prefix_caching": ("--tp", "4"),
    **dict.fromkeys(("mamba_full_memory_ratio", "max_mamba_cache_size"), ("--engine", "sglang", "--tp", "4")),
    "availability": ("--node-availability", "99%"),
    "node_availability": ("--availability", "99.9%"),
    "mtbf": ("--availability", "99.9%", "--mttr", "8h"),
    "mttr": ("--availability", "99.9%", "--mtbf", "90d"),
    "failures": ("--availability", "99.9%", "--node-availability", "95%"),
    "start": ("--growth", "5%"),
    "until": ("--growth", "5%"),
    "months": ("--growth", "5%"),
    "lead_time": ("--growth", "5%"),
    "split": ("--api", "1,3"),
    **dict.fromkeys(("min_replicas", "spot"), ("--profile", "office", "--cloud", "lambda")),
    "price_uncertainty": ("--uncertain",),
    "length_shape": ("--isl-std", "300"),
    "batch_size": ("--policy", "dynamic"),
    "batch_window": ("--policy", "dynamic"),
    "routing": ("--replicas", "2"),
}
MODELS = {
    **dict.fromkeys(("limit_mm_per_prompt", "language_model_only"), "qwen2.5-vl-7b"),
    **dict.fromkeys(("mamba_full_memory_ratio", "max_mamba_cache_size", "prefix_caching"), "qwen3-next-80b-a3b"),
}
OF_EXPERTS = ("ep", "dp", "all2all_backend", "expert_imbalance", "redundant_experts")
# The model and its GPU are the question itself, and every command here goes without simulation. Pools and traces need more than an
# option (tests/cli/test_pools_*.py, test_simulate_*.py), as do pictures and moves of a fleet. --conservative is --confidence 90%. A choice of an objective or of
# layouts may fall on the same answer (test_a_choice_can_change_the_answer).
ELSEWHERE = frozenset(
    {"model", "gpu", "objective", "layouts", "conservative", "disaggregate", "trace", "no_verify", "plot", "move"}
)
SAME_BYTES = ("memory", "ep")  # whole experts or parts of each: what a GPU holds of them is the same
STATES = ("--rps", "--users", "--dau", "--concurrency", "--documents", "--within")


def cases() -> Iterator[tuple[str, str]]:
    for command, (_, options, _) in COMMANDS.items():
        names = (option.name for option in options if option.name not in ELSEWHERE)
        yield from ((command, name) for name in names if (command, name) != SAME_BYTES)


def answered(*arguments: str) -> Any:
    """The answer without what repeats the question; None where it is refused, or nothing is written."""
    page = arguments[0] == "report"
    written = io.StringIO()
    with redirect_stdout(written), redirect_stderr(io.StringIO()):
        code = run([*arguments, *(() if page else ("--json",))])
    out = written.getvalue()
    if code == 2 or not out:
        return None
    return without_echoes(json.loads(out))


answered_plainly = cache(answered)  # many options are tried beside one question


def without_echoes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_echoes(inner) for key, inner in value.items() if key not in ECHOES}
    return [without_echoes(inner) for inner in value] if isinstance(value, list) else value


@pytest.fixture(autouse=True)
def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all optimisations `whatif` tries one, and a page is its record without changed inputs: the question is what all share."""
    monkeypatch.setattr(whatif, "applicable", lambda trial, *_: trial.optimisation == "kv_offload")
    monkeypatch.setattr(brief, "effects", lambda *_, **__: ())
    monkeypatch.setattr(chapters, "html", lambda report: json.dumps(view.plain(report)))


@pytest.mark.parametrize(("command", "name"), list(cases()))
def test_an_option_changes_the_answer_or_is_refused(command: str, name: str) -> None:
    needed, options, demand = COMMANDS[command]
    option = next(option for option in options if option.name == name)
    context = WITH.get(name, ())
    if command == "simulate" and name == "think_time":
        context = ("--users", "300")  # of one replica
    if command == "simulate" and name == "prefix_routing":
        context = (*context, "--replicas", "2")
    if (not demand and any(word in STATES for word in context)) or (command == "step" and name == "max_model_len"):
        context = ()
    own = any(word in STATES for word in context) or option.flags[0] in STATES or name == "mean_rps"
    model = ("-m", MODELS[name]) if name in MODELS else EXPERTS if name in OF_EXPERTS else MODEL
    flag = option.flags[0].rpartition("/")[2] if name == "prefix_caching" else option.flags[0]  # which is on without it
    stated = (flag,) if option.type in (bool, SWITCH) else (flag, VALUES[name])
    base = (command, *needed, *model, *(() if own else demand), *context)
    found = answered(*base, *stated)
    assert found is None or found != answered_plainly(*base), f"{command} {' '.join(stated)} changes nothing"


@pytest.mark.parametrize("command", ["memory", "step", "roofline"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "qwen2.5-vl-7b", "bge-m3"])
def test_an_option_with_nothing_to_act_on_is_refused(command: str, model: str) -> None:
    """Each option that the walk above tries in a context of its own, on layouts and models that leave it nothing."""
    needed, options, _ = COMMANDS[command]
    decode = command == "step" and model == "bge-m3"  # which decodes nothing
    base = (
        command,
        *(needed[:4] if decode else needed),
        "-m",
        model,
        *(("--tp", "2") if model == "qwen3-30b-a3b" else ()),
    )
    names = {*WITH, *MODELS, "max_model_len", "dcp", "cp"} - {"dp", "ep"}  # sizes of a layout are the question
    if (command, model) != ("memory", "qwen2.5-vl-7b"):  # an engine reserves room for the model's images, asked or not
        names.add("images")
    for option in (option for option in options if option.name in names):
        off = option.flags[0].partition("/")[2]
        for flag in (option.flags[0].partition("/")[0], *((off,) if off else ())):
            found = answered(*base, flag, *(() if option.type in (bool, SWITCH) else (VALUES[option.name],)))
            assert found is None or found != answered_plainly(*base), f"{' '.join(base)} {flag} changes nothing"


@pytest.mark.parametrize("choice", [("--objective", "cost"), ("--layouts", "pipelines")])
def test_a_choice_can_change_the_answer(choice: tuple[str, str]) -> None:
    asked = ("estimate", "-m", "llama-3.1-70b", "-g", "l40s,h100-sxm", *LENGTHS, "--rps", "3", "--no-verify")
    plain = answered(*asked, "--objective", "gpus")
    assert (
        plain is not None
        and answered(*asked, *(choice if choice[0] == "--objective" else ("--objective", "gpus", *choice))) != plain
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("estimate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--no-enable-prefix-caching"), "--no-enable-prefix-caching: changes nothing"),
        (("estimate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--enable-prefix-caching"), "--enable-prefix-caching: changes nothing"),
        (("estimate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--prefix-hit", "0.5", "--no-enable-prefix-caching"), "is on where prefixes"),
        (("estimate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--layouts", "pipelines", "--tp", "2"), "--layouts: has nothing to choose"),
        (("simulate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--no-enable-prefix-caching"), "changes nothing"),
        (("simulate", *MODEL, "-g", "h100-sxm", "--isl", "9", "--osl", "1", "--rps", "5", "--itl", "9ms"), "one token"),
        (("simulate", "-m", "bge-m3", "-g", "h100-sxm", "--isl", "9", "--rps", "5", "--kv-cache-memory-bytes", "3GB"), "no KV cache"),
        (("simulate", *EXPERTS, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--tp", "2", "--expert-imbalance", "3"), "with --ep"),
        (("deploy", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--profile", "office"), "whose hours change no size"),
        (("estimate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "-q", "--verbose"), "contradicts --verbose"),
        (("deploy", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--draft-model", "a/b"), "where nothing is drafted"),
        (("deploy", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--benchmark", "vllm", "--for", "compose"), "nothing of a benchmark"),
        (("estimate", "-m", "qwen2.5-vl-7b", "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--images", "2x99x99", "--limit-mm-per-prompt", "image=1"), "1 images of a prompt at most"),
        (("sweep", *MODEL, "-g", "h100-sxm", "--isl", "9", "--vary", "osl=9", "--rps", "5", "--profile", "office"), "whose hours change no size"),
        (("step", "-m", "bge-m3", "-g", "h100-sxm", "--prefill", "9", "--tp", "2", "--cp", "2"), "no cache that could be cut"),
        (("estimate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--mode", "offline", "--ttft", "1us"), "offline work"),
        (("estimate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--concurrency", "5", "--closed-loop", "--max-utilisation", "0.5"), "closed loop"),
        (("memory", *MODEL, "-g", "h100-sxm", "--prefix-hit", "0.5"), "--prefix-shared"),
        (("cost", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--requests-per-user", "3"), "with --dau"),
        (("sweep", *MODEL, "-g", "h100-sxm", "--isl", "9", "--vary", "osl=9", "--rps", "5", "--active-hours", "3"), "with --dau"),
        (("simulate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--concurrency", "5", "--seed", "3"), "nothing is drawn"),
        (("estimate", *MODEL, "-g", "h100-sxm", *LENGTHS, "--users", "50", "--mode", "offline"), "nobody thinks"),
        (("estimate", *MODEL, "-g", "h100-sxm", "--isl", "9", "--osl", "1", "--rps", "5", "--itl", "9ms"), "one token"),
        (("cost", *MODEL, "-g", "h100-sxm", *LENGTHS, "--gpus", "4", "--peak-to-mean", "3"), "--mean-rps"),
        (("sweep", *MODEL, "-g", "h100-sxm", "--isl", "9", "--vary", "osl=9", "--gpus", "4", "--percentile", "95%"), "without a demand"),
    ],
)  # fmt: skip
def test_what_has_no_effect_says_why(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(list(arguments)) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("workload", [(), ("chat",)])
def test_a_blank_model_is_one_fault(workload: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for blank in ("", " "):
        assert run(["estimate", *workload, "-m", blank, "-g", "h100-sxm", *LENGTHS, "--rps", "5"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("llmsize: --model: names no model; allowed: a name (llmsize models)")


def test_deploy_writes_a_prefix_cache_whatever_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["deploy", *MODEL, "-g", "h100-sxm", *LENGTHS, "--rps", "5", "--no-verify", "--no-enable-prefix-caching"]
    assert run(asked) == 0 and "--no-enable-prefix-caching" in capsys.readouterr().out


def test_limits_of_offline_work_are_refused_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "batch.yaml"
    file.write_text("model: llama-3.1-8b\ntokens: {isl: 9, osl: 9}\nmode: offline\nlimits: {ttft: 1s}\n")
    assert run(["estimate", str(file), "-g", "h100-sxm"]) == 2
    assert "batch.yaml:4: limits.ttft" in capsys.readouterr().err
