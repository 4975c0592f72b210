"""Every option of every command has a try: those that commands share in test_every_option.py, all others here.

The commands and their options are read from the application, so that a new option needs an entry. Each entry is an option, or a
switch, that acts on the command line beside it: with it, what is printed or written differs. What repeats the question is left
out, as it repeats any option.
"""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer
from places import ROOT
from test_every_option import SAME_BYTES, cases, shortened, without_echoes

from sizing.cli.main import application, run

FIXTURES = (shortened,)
Tries = dict[str, str | tuple[str, str]]  # a pair has a command line of its own
DATA, INPUTS = ROOT / "tests" / "data", ROOT / "tests" / "golden" / "inputs"
ONE = "-m llama-3.1-8b -g h100-sxm"
LENGTHS = "--isl 1000 --osl 200"
QUICK = f"{ONE} {LENGTHS} --rps 30 --no-verify"
COMPARED = f"{LENGTHS} --rps 30 -m llama-3.1-8b -g h100-sxm,l40s --no-verify --jobs 1"
SPREAD = f"{ONE} --rps 30 --isl 1000 --vary osl=200,300 --jobs 1"
CURVED = f"{ONE} {LENGTHS} --concurrency 8,64 --tp 1,2"
SIMULATED = f"{ONE} {LENGTHS} --rps 3 --requests 40"
SERVED = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
CHECKED = f"'{SERVED}' --demand chat --set model=llama-3.1-8b -g h100-sxm --replicas 9"
ROWS, TRACE = f"{DATA}/own_points.csv", f"{INPUTS}/requests.csv"
FLEET = f"{INPUTS}/two-pools-fleet.yaml --no-verify"
SHOWN = {"format": "--format csv", "json": "--json", "verbose": "--verbose"}
EXPLAINED, QUIET, UNVERIFIED = {"explain": "--explain"}, {"quiet": "--quiet"}, {"no_verify": "--no-verify"}
NAMED = {"model": "-m mistral-7b-v0.1", "gpu": "-g l40s"}
# Choices that may fall on the same answer, and pools, have tests of their own (test_every_option.py, test_pools_*.py).
CHOICES = frozenset({"objective", "layouts", "conservative", "disaggregate"})
# Options that change how long a command takes, not what it says; a cluster is not at hand.
SAME = frozenset({"jobs", "dask"})
FITTED = {"calibrate": frozenset(SHOWN)}
# Of each command: a command line, and the options that change what it prints or writes there. `NEW` is a file to write.
TRIED: dict[str, tuple[str, Tries]] = {
    "estimate": (QUICK, {
        **SHOWN, **EXPLAINED, **QUIET, **NAMED,
        "measured": (f"{ONE} --isl 1000 --osl 500 --rps 3", f"--from {ROWS}"),
        "trace": (f"{ONE} --no-verify", f"--trace {TRACE}"),
        "no_verify": (QUICK.removesuffix(" --no-verify"), "--no-verify"),
    }),
    "plan": (QUICK, {
        **SHOWN, **QUIET, **NAMED,
        "move": (FLEET, "--move calls=h100-sxm"),
        "plot": (f"{QUICK} --profile office", "--plot NEW.svg"),
        "no_verify": (QUICK.removesuffix(" --no-verify"), "--no-verify"),
    }),
    "cost": (QUICK, {
        **SHOWN, **EXPLAINED, **NAMED,
        "measured": (f"{ONE} --isl 1000 --osl 500 --rps 3 --split 3", f"--from {ROWS}"),
        "plot": (f"{QUICK} --api 1,3", "--plot NEW.svg"),
        "no_verify": (QUICK.removesuffix(" --no-verify"), "--no-verify"),
    }),
    "memory": (ONE, {
        **SHOWN, **EXPLAINED, "model": "-m llama-3.1-8b --share 0.4,0.4", "gpu": "-g l40s", "sequences": "--sequences 9", "share": "--share 0.5",
    }),
    "step": (f"{ONE} --decode 8 --context 900", {
        **SHOWN, **NAMED, "decode": "--decode 9", "context": "--context 9000", "prefill": "--prefill 300",
        "prior": (f"{ONE} --prefill 300", "--prior 3000"),
    }),
    "curve": (f"{CURVED} --no-verify", {
        **SHOWN, **NAMED, "tp": "--tp 1", "pp": "--pp 1,2", "concurrency": "--concurrency 9", "closed_loop": "--closed-loop",
        "x": "--x itl", "plot": "--plot NEW.svg", "measured": (CURVED.replace("200", "500"), f"--measured {ROWS}"),
        "measured_only": (f"{CURVED.replace('200', '500')} --measured {ROWS}".replace("--concurrency 8,64 --tp 1,2", ""), "--measured-only"),
        "no_verify": (CURVED, "--no-verify"), "seed": (CURVED, "--seed 3"),
    }),
    "compare": (COMPARED, {
        **SHOWN, **NAMED, "sort": "--sort energy",
        "measured": (f"{ONE} --isl 1000 --osl 500 --rps 3", f"--from {ROWS}"),
        "replace": (COMPARED.replace("--rps 30", ""), "--replace 2xh100-sxm"),
        "no_verify": (COMPARED.removesuffix(" --no-verify --jobs 1"), "--no-verify"),
    }),
    "sweep": (SPREAD, {
        **SHOWN, **NAMED, "vary": "--vary tp=1,2", "verify": "--verify", "shard": "--shard 1/2",

    }),
    "roofline": (f"{ONE} --batch 1,64", {
        **SHOWN, **NAMED, "batch": "--batch 2", "context": "--context 9000", "prefill": "--prefill 300", "plot": "--plot NEW.svg",
        **dict.fromkeys(("isl", "osl"), "--isl 3000 --osl 300"),
    }),
    "report": (f"{QUICK} -o -", {
        **NAMED, "output": (QUICK, "-o NEW.html"), "no_verify": (f"{ONE} {LENGTHS} --rps 30 -o -", "--no-verify"),
    }),
    "simulate": (SIMULATED, {
        **SHOWN, **NAMED, "trace": (ONE, f"--trace {TRACE}"), "plot": "--plot NEW.svg", "requests_out": "--requests-out NEW.csv",
        "ticks": ("--concurrency 3 --requests 9", "--ticks"),
        "prefill": ("--ticks --rate 0.3 --requests 9", "--prefill 5"),
        "prefill_chunks": ("--ticks --rate 0.3 --requests 9 --policy chunked", "--prefill-chunks 2"),
        "rate": ("--ticks --requests 9", "--rate 0.3"), "osl_mean": ("--ticks --rate 0.3 --requests 9", "--osl-mean 7"),
    }),
    "whatif": (QUICK, {
        **SHOWN, **NAMED,
        "no_verify": (QUICK.removesuffix(" --no-verify"), "--no-verify"),
    }),
    "explain": ("ttft", SHOWN),
    "validate": (f"{DATA}/own_others.csv --jobs 1", {
        **SHOWN, "by": "--by load", "per_row": "--per-row NEW.csv", "plot": "--plot NEW.svg", "gpu": "-g l40s",
    }),
    "calibrate": (f"{ROWS} -g h100-sxm", {  # a fit takes seconds, and recorded outputs hold its formats
        "gpu": "-g h100-pcie", "engine": "--engine sglang", "out": "--out NEW.yaml",
    }),
    "deploy": (QUICK, {
        **NAMED, "target": "--for compose", "checkpoint": "--checkpoint a/b", "benchmark": "--benchmark vllm",
        "draft_model": (f"{QUICK} --speculative eagle3:3@0.75", "--draft-model a/b"), "output": "--output NEW.yaml", "json": "--json",
        "no_verify": (f"{ONE} {LENGTHS} --rps 12 --itl p99:20ms", "--no-verify"),
    }),
    "check": (f"{CHECKED} --no-verify", {
        **SHOWN, "demand": (f"'{SERVED}' -g h100-sxm --replicas 9 --no-verify", "--demand rag --set model=llama-3.1-8b"), "model": (CHECKED.replace("vllm serve meta-llama/Llama-3.1-8B-Instruct", "vllm serve /model") + " --no-verify", "-m llama-3.1-8b"),
        "gpu": "-g h200-sxm", "engine": "--engine vllm:0.19.0", "replicas": "--replicas 10",
        "ignore_flags": (CHECKED.replace("Instruct", "Instruct --my-flag") + " --no-verify", "--ignore-flags=--my-flag"),
        "max_utilisation": "--max-utilisation 1%", "min_headroom": "--min-headroom 90%", "max_gpus": "--max-gpus 1",
        "max_usd_per_million_tokens": "--max-usd-per-million-tokens 0.001", "confidence": "--confidence 90%",
        "set": "--set tokens.isl=700", "price": "--price 9", "provider": "--provider lambda", "baseline": f"--baseline {INPUTS}/checked.json",
        "no_verify": (CHECKED, "--no-verify"),
        "isl": "--isl 700", "osl": "--osl 70", "isl_max": "--isl-max 9000", "osl_max": "--osl-max 900", "rps": "--rps 3", "users": "--users 30",
        "think_time": (f"{CHECKED} --no-verify --users 30", "--think-time 9s"), "concurrency": "--concurrency 30",
        "documents": (f"'{SERVED}' -g h100-sxm --no-verify --isl 900 --osl 90 --rps 9", "--documents 9m --within 9h"),
        "within": (f"'{SERVED}' -g h100-sxm --no-verify --isl 900 --osl 90 --documents 9m --within 9h", "--within 4h"),
        "closed_loop": (f"{CHECKED} --no-verify --concurrency 30", "--closed-loop"),
        "requests_per_session": (f"{CHECKED} --no-verify --users 30", "--requests-per-session 3 --session-length 1min"),
        "session_length": (f"{CHECKED} --no-verify --users 30", "--requests-per-session 3 --session-length 2min"),
        "dau": "--dau 9000", "requests_per_user": (f"{CHECKED} --no-verify --dau 9000", "--requests-per-user 7"),
        "active_hours": (f"{CHECKED} --no-verify --dau 9000", "--active-hours 3"),
        "peak_to_mean": (f"{CHECKED} --no-verify --dau 9000", "--peak-to-mean 5"),
        "mode": (f"'{SERVED}' -g h100-sxm --no-verify --isl 900 --osl 90 --rps 9", "--mode offline"), "mean_rps": "--mean-rps 3 --profile office", "profile": "--mean-rps 3 --profile consumer",
        "percentile": "--percentile 95%", "ttft": "--ttft 100ms", "itl": "--itl 20ms", "e2e": "--e2e 3s",
        "images": (f"'vllm serve google/gemma-3-12b-it' -g h100-sxm --replicas 9 --no-verify {LENGTHS} --rps 1", "--images 2x1024x1024"),
    }),
    "import": (f"{DATA}/course/fp8_tp1_c1.json -g h100-sxm --tp 1 --precision fp8", {
        **SHOWN, "out": "--out NEW.csv", "skip_bad": (f"{DATA}/course/fp8_tp1_c1.json {TRACE} -g h100-sxm --tp 1 --precision fp8", "--skip-bad"),
        "model": "-m mistral-7b-v0.1", "gpu": "-g l40s", "engine": "--engine sglang", "precision": "--precision bf16",
        "kv_precision": "--kv-precision fp8", "gpus": "--gpus 2", "tp": "--tp 2", "pp": "--pp 2", "ep": "--ep 2", "dp": "--dp 2",
        "isl": "--isl 777", "osl": "--osl 77", "concurrency": "--concurrency 3", "rps": "--rps 3",
        "speculative": "--speculative eagle3:3@0.75", "prefix_hit": "--prefix-hit 30%",
        "seconds": "--seconds 9",
    }),
    "gpus": ("h100-sxm", {"json": "--json", "yaml": "--yaml"}),
    "models": ("llama-3.1-8b", {"json": "--json", "yaml": "--yaml"}),
    "engines": ("vllm", {"json": "--json", "yaml": "--yaml"}),
    "workloads": ("chat", {"json": "--json", "yaml": "--yaml"}),
    "prices": ("h100-sxm", {"json": "--json"}),
    "config": ("", {"all_": "--all", "json": "--json"}),
    "init": (f"--answers {INPUTS}/answers.txt -o -", {
        "answers": ("-o -", f"--answers {INPUTS}/answers.txt"), "output": "-o NEW.yaml",
        "force": (f"--answers {INPUTS}/answers.txt -o OLD", "--force"),
    }),
}  # fmt: skip
WRITES = ("format", "json", "yaml", "verbose", "explain", "quiet")  # how an answer is written: its text tells


@cache
def options() -> dict[str, dict[str, list[str]]]:
    """The options of each command with their flags, by the application itself."""
    commands: dict[str, Any] = getattr(typer.main.get_command(application()), "commands", {})
    return {
        name: {each.name: each.opts for each in command.params if each.opts[0].startswith("-")}
        for name, command in commands.items()
    }


def test_every_option_has_a_try() -> None:
    walked = {*cases(), SAME_BYTES}
    for command, known in options().items():
        tried = TRIED.get(command, ("", {}))[1]
        left = {*known} - {*tried} - SAME - CHOICES - FITTED.get(command, frozenset())
        assert not {name for name in left if (command, name) not in walked}, command
        assert {*tried} <= {*known}, command


def outcome(command: str, line: str, folder: Path, *, text: bool) -> tuple[int, Any, bool, str]:
    """Exit code, what is printed without what repeats the question, whether a file was written, and the faults."""
    words = shlex.split(line.replace("NEW", str(folder / "new")).replace("OLD", str(folder / "old.yaml")))
    (folder / "old.yaml").touch()
    as_json = not text and "json" in options()[command] and "--json" not in words
    written, faults = io.StringIO(), io.StringIO()
    with redirect_stdout(written), redirect_stderr(faults):
        code = run([command, *words, *(["--json"] if as_json else [])])
    out = written.getvalue()
    found = without_echoes(json.loads(out)) if as_json and out and code < 2 else out
    return code, found, any(folder.glob("new.*")), faults.getvalue()


@cache  # many options are tried beside one line
def plain(command: str, line: str, text: bool) -> tuple[int, Any, bool]:
    with TemporaryDirectory() as folder:
        return outcome(command, line, Path(folder), text=text)[:3]


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command, (_, tries) in TRIED.items() for name in tries]
)
def test_an_own_option_changes_what_is_printed_or_written(command: str, name: str, tmp_path: Path) -> None:
    """A refusal is about what the option says: the fault names it, or the runs that it leaves out."""
    base, tries = TRIED[command]
    option = tries[name]
    line, stated = (base, option) if isinstance(option, str) else option
    *found, faults = outcome(command, f"{line} {stated}", tmp_path, text=name in WRITES)
    assert tuple(found) != plain(command, line, name in WRITES), f"{command} {line} {stated} changes nothing"
    named = any(flag in faults for flag in options()[command][name]) or command in FITTED
    assert found[0] < 2 or named, f"{command} {line} {stated}: {faults}"
