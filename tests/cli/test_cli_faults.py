"""Faults of the command line: all of one run together, each with its option or its file's line, and what words mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import engine_of, real_gpu, real_model
from places import ROOT

from sizing.catalog import shelf
from sizing.catalog.profiles import load_engine, load_gpu
from sizing.cli import options
from sizing.cli.main import run
from sizing.model import precision, settings
from sizing.specs.data import Formats
from sizing.specs.errors import Fault, InputError, UntimedError
from sizing.specs.gpu import stand_ins
from sizing.specs.workload import Precision

LLAMA = ["-m", "llama-3.1-8b", "-g", "h100-sxm"]
LENGTHS = ["--isl", "1000", "--osl", "100"]
SERVED = [*LENGTHS, "--rps", "1", "--no-verify"]
WRONG = ["-m", "nope", "-g", "nix", "--engine", "bad", "--format", "x", "--precision", "y"]
PROFILES = ROOT / "hardware_profiles"
VOLTA = "v100-sxm2-32gb"  # room for the model, but no efficiency of a cache in NVFP4 or what stands in for it


def faults(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The faults of a command that is refused."""
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return [line.removeprefix("llmsize: ") for line in err.splitlines()]


def document(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, Any]:
    """The JSON that a command prints."""
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# --- all faults in one go -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "extra", "more"),
    [
        ("estimate", ["--price", "-1", "--gpus", "0", "--isl", "0"], ["--price", "--gpus", "--isl", "--osl"]),
        ("estimate", ["--price", "nix=x", "--isl", "9", "--osl", "9", "--rps", "1"], ["--price"]),
        ("memory", ["--tp", "0"], ["--tp"]),
        ("step", ["--prior", "5"], ["--decode, --prefill"]),
        ("simulate", ["--isl", "0", "--policy", "z", "--plot", "/no/where.png"], ["--isl", "--osl", "--policy", "--plot"]),
        ("simulate", ["--trace", "no.csv"], ["no.csv"]),
    ],
)  # fmt: skip
def test_what_does_not_depend_on_each_other_is_reported_together(
    command: str, extra: list[str], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = faults(capsys, command, *WRONG, *extra)
    starts = ["--model", "--gpu", "--engine", "--format", "--precision", *more]
    assert sorted(starts) == sorted(next(s for s in starts if line.startswith(f"{s}: ")) for line in found)


def test_ticks_report_their_faults_together(capsys: pytest.CaptureFixture[str]) -> None:
    found = faults(capsys, "simulate", "--ticks", "--format", "x", "--plot", "/no/where.png", "--slots", "0")
    assert [line.partition(":")[0] for line in found] == ["--format", "--plot", "--slots"]


def test_a_name_that_is_wrong_twice_over_is_told_twice(capsys: pytest.CaptureFixture[str]) -> None:
    found = faults(capsys, "memory", "-m", "llama-3.1-8b", "-g", "h100-sxn,h100-sxm")
    assert len(found) == 2
    assert "one GPU type at a time" in found[0] and "did you mean h100-sxm?" in found[1]


# --- where a value came from ----------------------------------------------------------------------------------------


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """A workload whose model, second GPU, engine and longest sequence are wrong."""
    path = tmp_path / "w.yaml"
    path.write_text(
        "model: llama-3.1-9b\n"
        "gpu: [h100-sxm, h100-sxn]\n"
        "tokens: {isl: 1000, osl: 100}\n"
        "demand: {requests_per_s: 1}\n"
        "serving:\n"
        "  engine: vllmm\n"
        "  max_model_len: 10\n"
    )
    return path


def test_faults_of_a_file_have_its_line_and_field(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = faults(capsys, "estimate", str(workload))
    places = [f"{workload}:1: model: ", f"{workload}:2: gpu[1]: ", f"{workload}:6: serving.engine: "]
    assert [line.startswith(place) for line, place in zip(found, places, strict=True)] == [True] * 3


def test_faults_of_options_over_a_file_name_the_option(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = faults(capsys, "estimate", str(workload), "-m", "nope", "-g", "nix", "--engine", "vllm:99")
    assert [line.partition(":")[0] for line in found] == ["--model", "--gpu", "--engine"]


@pytest.mark.parametrize(
    ("extra", "start"),
    [
        ([], "{}:7: serving.max_model_len: 10 is shorter"),
        (["--max-model-len", "20"], "--max-model-len: 20 is shorter"),
        (["--isl", "200000", "--max-model-len", "300000"], "--isl: 200,100 tokens"),
    ],
)
def test_lengths_are_placed_where_they_were_stated(
    workload: Path, extra: list[str], start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = faults(capsys, "estimate", str(workload), *LLAMA, "--engine", "vllm", *extra)
    assert found[0].startswith(start.format(workload))


@pytest.mark.parametrize(
    ("extra", "place"),
    [(["-g", "./nix.yaml"], "nix.yaml: --gpu: "), (["--engine", "./nix.yaml"], "nix.yaml: --engine: ")],
)
def test_a_file_that_is_missing_names_the_option_that_wants_it(
    extra: list[str], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = faults(capsys, "estimate", *LLAMA, *SERVED, *extra)
    assert line.startswith(place) and "not found" in line


@pytest.mark.parametrize(("typed", "meant"), [("estmate", "estimate"), ("memry", "memory"), ("gpu", "gpus")])
def test_an_unknown_command_gets_the_nearest(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = faults(capsys, typed)
    assert repr(typed) in line and line.endswith(f"did you mean {meant}?")


def test_an_unknown_option_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = faults(capsys, "estimate", "--modl", "x")
    assert "--modl" in line and "--model" in line


# --- engine and GPU profiles of a user's own ------------------------------------------------------------------------


def engine_with(tmp_path: Path, old: str, new: str) -> tuple[Path, int]:
    """A copy of an engine profile with one line changed, and the number of that line."""
    lines = (PROFILES / "engines" / "vllm.yaml").read_text().splitlines()
    number = next(index for index, line in enumerate(lines) if old in line)
    lines[number] = lines[number].replace(old, new)
    path = tmp_path / "own.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path, number + 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  block_tokens:", "  block_tokns:", "settings.block_tokns: unknown key; did you mean block_tokens?"),
        ("value: 16", "value: sixteen", "must be a whole number above 0; not 'sixteen'"),
        ("value: prompt", "value: promt", "is not known: 'promt'; did you mean prompt?"),
        ("oldest: 0.4.0", "oldest: four", "oldest: 'four' is not a version"),
    ],
)
def test_faults_of_an_engine_profile_are_in_plain_words_with_their_line(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    text = (PROFILES / "engines" / "vllm.yaml").read_text()
    if old not in text:
        old, new = old.replace(": ", ': "') + '"', new.replace(": ", ': "') + '"'
    path, number = engine_with(tmp_path, old, new)
    with pytest.raises(InputError) as caught:
        load_engine(str(path))
    for part in words.split("; "):
        assert any(part in str(fault) and fault.line == number for fault in caught.value.faults), str(caught.value)
    assert all(fault.file == str(path) and "Input should" not in fault.message for fault in caught.value.faults)


def test_every_engine_of_the_catalogue_is_right_when_it_is_ones_own() -> None:
    for path in (PROFILES / "engines").glob("*.yaml"):
        assert load_engine(str(path))[0].id == path.stem


def test_rows_in_an_unknown_precision_are_a_fault_with_their_line(tmp_path: Path) -> None:
    profile = yaml.safe_load((PROFILES / "gpus" / "h100-sxm.yaml").read_text())
    profile["efficiency"][0]["precision"] = "fp9"
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(profile, sort_keys=False))
    with pytest.raises(InputError, match=r"own\.yaml:\d+: efficiency\[0\]\.precision: is not known: 'fp9'.*fp8"):
        load_gpu(str(path))


def test_every_gpu_of_the_catalogue_is_right_when_it_is_ones_own() -> None:
    paths = list((PROFILES / "gpus").glob("*.yaml"))
    assert [load_gpu(str(path)).id for path in paths] == [path.stem for path in paths]


@pytest.mark.parametrize("asked", [{"precision": "fp9"}, {"kv_precision": "fp9"}])
def test_a_format_that_the_data_do_not_know_is_a_fault(asked: dict[str, str]) -> None:
    engine, version = engine_of("vllm")
    deployment = settings.SettingsConditions("H100", "hopper", 80.0, 1, 1, "other")
    resolved = settings.resolve(engine, version, deployment)
    with pytest.raises(InputError, match=r"'fp9' is no known weight or cache format; allowed: .*fp8"):
        precision.plan(real_model("llama-3.1-8b"), real_gpu("h100-sxm"), resolved, shelf.only(Formats), **asked)  # type: ignore[arg-type]


def test_a_peak_that_the_hardware_lacks_is_no_crash() -> None:
    with pytest.raises(UntimedError, match="no fp8 peak"):
        precision.peak_flops(real_gpu(VOLTA).datasheet.dense_tflops, "fp8_block")


# --- what can't be timed --------------------------------------------------------------------------------------------


def test_a_gpu_without_an_efficiency_is_turned_down_and_others_are_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(
        capsys, 0, "estimate", "-m", "llama-3.1-8b", "-g", f"{VOLTA},h100-sxm", *SERVED, "--kv-precision", "nvfp4"
    )
    assert found["deployment"]["gpu_id"] == "h100-sxm"
    reasons = {row["reason"] for row in found["rejected"] if row["gpu"].startswith("V100")}
    assert "efficiency" in reasons
    detail = next(row["detail"] for row in found["rejected"] if row["reason"] == "efficiency")
    assert detail.count("nvfp4") == 1 and "decode_attention" in detail


def test_a_gpu_without_an_efficiency_alone_is_infeasible(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, 1, "estimate", "-m", "llama-3.1-8b", "-g", VOLTA, "--tp", "1", *SERVED, "--kv-precision", "nvfp4"
    )
    assert found["limiting"]["limit"] == "efficiency"
    assert any(words.startswith("--kv-precision fp8") for words in found["limiting"]["suggestions"])


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "fp8", "int8", "nvfp4", "int4", "mxfp4"])
def test_what_stands_in_for_a_precision_begins_with_itself_and_repeats_none(name: str) -> None:
    found = stand_ins(name)
    assert found[0] == name and len(set(found)) == len(found)


# --- names and words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["all,nonsense", "nonsense,all", "ALL,nonsense"])
def test_all_hides_no_name_that_is_wrong(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = faults(capsys, "estimate", "-m", "llama-3.1-8b", "-g", names, *SERVED)
    assert line.startswith("--gpu: unknown GPU 'nonsense'")


@pytest.mark.parametrize("names", ["", ",", " , "])
@pytest.mark.parametrize("command", [["estimate", *SERVED], ["memory"], ["step", "--prefill", "9"]])
def test_no_gpu_named_is_a_fault(command: list[str], names: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = faults(capsys, *command, "-m", "llama-3.1-8b", "-g", names)
    assert line.startswith("--gpu: names no GPU type")


@pytest.mark.parametrize(
    ("extra", "key", "value"),
    [
        (["--kv-precision", "FP8"], "kv_precision", "fp8"),
        (["--precision", "FP8"], "weight_precision", "fp8"),
        (["--mode", "Sequential"], "mode", "sequential"),
        (["--objective", "COST"], "objective", "cost"),
        (["--format", "JSON"], "isl", 1000),
    ],
)
def test_words_are_taken_in_any_case(
    extra: list[str], key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, 0, "estimate", *LLAMA, *SERVED, *extra)["inputs"][key] == value


def test_every_precision_can_be_asked_for_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, 0, "estimate", *LLAMA, *SERVED, "--precision", "All", "--tp", "1")
    rows = [*found["alternatives"], *found["rejected"]]
    seen = {row["weight_precision"] for row in rows} | {found["inputs"]["weight_precision"]}
    assert seen == set(Precision.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("which", ["gpu", "engine", "workload", "trace"])
def test_a_path_may_begin_with_the_home_folder(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "g.yaml").write_text((PROFILES / "gpus" / "h100-sxm.yaml").read_text())
    (tmp_path / "e.yaml").write_text((PROFILES / "engines" / "vllm.yaml").read_text())
    (tmp_path / "w.yaml").write_text("model: llama-3.1-8b\ntokens: {isl: 1000, osl: 100}\n")
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,10,5\n")
    commands = {
        "gpu": ["estimate", "-m", "llama-3.1-8b", "-g", "~/g.yaml", *SERVED],
        "engine": ["estimate", *LLAMA, "--engine", "~/e.yaml", *SERVED],
        "workload": ["estimate", "~/w.yaml", *LLAMA, *SERVED],
        "trace": ["simulate", *LLAMA, "--trace", "~/t.csv"],
    }
    document(capsys, 0, *commands[which])


def test_files_of_one_stem_are_compared_as_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "h100-sxm.yaml"
    own.write_text((PROFILES / "gpus" / "h100-sxm.yaml").read_text())
    found = document(capsys, 0, "estimate", "-m", "llama-3.1-8b", "-g", f"h100-sxm,{own}", *SERVED, "--tp", "1")
    assert found["inputs"]["gpu_ids"] == ["h100-sxm", str(own)]
    assert len(found["alternatives"]) == 1  # TP1 on the one and TP1 on the other
    same = document(capsys, 0, "estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm,H100 SXM,h100-sxm", *SERVED)
    assert same["inputs"]["gpu_ids"] == ["h100-sxm"]


# --- options that contradict --------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [["--gpus", "4"], ["--mode", "offline"]])
def test_headroom_needs_a_demand_to_grow(load: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = faults(capsys, "estimate", *LLAMA, *LENGTHS, *load, "--headroom", "0.5")
    assert line.startswith("--headroom: there is no demand to grow; use it with --rps")


def test_headroom_with_a_demand_and_a_budget_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    document(capsys, 0, "estimate", *LLAMA, *SERVED, "--gpus", "4", "--headroom", "0.5")


def test_a_dense_model_has_no_experts_to_spread(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, 1, "estimate", *LLAMA, *SERVED, "--ep", "2")
    assert {row["detail"] for row in found["rejected"]} == {"EP2 spreads experts, and a dense model has none"}
    assert "a dense model has none" in document(capsys, 1, "memory", *LLAMA, "--tp", "2", "--ep", "2")["reason"]


def test_all_that_is_refused_in_a_layout_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    reason = document(capsys, 1, "memory", *LLAMA, "--tp", "1001")["reason"]
    # Nodes of 8 and NVLink among 8; 32 heads do not split by 1001.
    assert "1001 GPUs of a stage do not fill whole nodes of 8" in reason
    assert "32 attention heads are not divisible by TP1001" in reason


@pytest.mark.parametrize(
    ("batch", "extra", "words"),
    [
        (["--decode", "8", "--context", "9"], ["--max-num-seqs", "7"], "8 sequences"),
        (["--decode", "8", "--context", "9", "--prefill", "5"], ["--max-num-seqs", "8"], "9 sequences"),
        (["--prefill", "513"], ["--max-num-batched-tokens", "512"], "513 tokens"),
        (["--decode", "1", "--context", "9", "--prefill", "512"], ["--max-num-batched-tokens", "512"], "513 tokens"),
        (
            ["--decode", "1", "--context", "131073"],
            [],
            "--context: 131,073 tokens exceed the model's 131,072 positions",
        ),
        (["--prefill", "73", "--prior", "131000"], [], "131,073 tokens exceed the model's 131,072 positions"),
        # It bounds sequences, and a step has the context that is given: without effect, so refused.
        (["--decode", "1", "--context", "1025"], ["--max-model-len", "1024"], "--max-model-len: bounds sequences"),
        (["--prefill", "25", "--prior", "1000"], ["--max-model-len", "1024"], "--max-model-len: bounds sequences"),
        (["--prefill", "100k"], [], "100,000 tokens are more than the engine takes in a step"),
        (["--prefill", "9", "--context", "5"], [], "with --decode"),
        (["--decode", "1", "--context", "9", "--prior", "5"], [], "with --prefill"),
    ],
)
def test_a_step_is_no_more_than_the_engine_runs(
    batch: list[str], extra: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = faults(capsys, "step", *LLAMA, *batch, *extra)
    assert words in line
    # Each attention group has limits of its own: two of them run twice as much, but a prompt is on one of them.
    if extra and extra[0].startswith("--max-num") and "513" not in batch:
        document(capsys, 0, "step", "-m", "gpt-oss-20b", "-g", "h100-sxm", *batch, *extra, "--dp", "2")


# --- notes and help -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["memory"],
        ["step", "--prefill", "100"],
        ["simulate", *LENGTHS, "--requests", "2"],
        ["estimate", *SERVED],
    ],
    ids=lambda command: str(command[0]),
)
def test_the_notes_on_the_model_are_listed(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*command, "-m", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "-g", "h100-sxm"]
    listed = document(capsys, 0, *asked)["assumptions"]
    assert "model architecture" in {entry["what"] for entry in listed}
    notes = [entry["value"] for entry in listed if entry["what"] == "note on the model"]
    assert any("FP8-dynamic" in note.upper().replace("DYNAMIC", "dynamic") for note in notes)  # of the name
    assert any("head_dim" in note for note in notes)  # of the config's reader


@pytest.mark.parametrize("option", ["--gpu-memory-utilization", "--cuda-graphs-gib"])
def test_a_step_takes_no_option_that_would_not_change_it(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = faults(capsys, "step", *LLAMA, "--prefill", "9", option, "0.5")
    assert option in line


@pytest.mark.parametrize("option", ["--mode", "--gpus", "--headroom", "--price"])
def test_a_simulation_takes_no_option_that_would_not_change_it(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = faults(capsys, "simulate", *LLAMA, *LENGTHS, "--requests", "2", option, "1")
    assert option in line


@pytest.mark.parametrize("table", [options.MODEL_OPTIONS, options.MEMORY_OPTIONS])
def test_the_help_of_precision_lists_them_all(table: tuple[options.Field, ...]) -> None:
    (text,) = [option.help for option in table if option.name == "precision"]
    words = text.replace(",", " ").replace(";", " ").replace(".", " ").split()
    assert set(Precision.__args__) <= set(words)  # type: ignore[attr-defined]
    assert ("several" in text) == (table is options.MODEL_OPTIONS)


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--concurency", "--concurrency"),
        ("--gpu-types", "--gpu"),
        ("--request-rate", "--rps"),
        ("--input_tokens", "--isl"),
        ("--context", "--max-model-len"),
    ],
)
def test_an_unknown_option_is_told_with_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], option: str, meant: str
) -> None:
    (told,) = faults(capsys, "estimate", *LLAMA, option, "1")
    assert told.startswith(f"{option}: estimate has no such option") and told.endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("command", "option", "said"),
    [
        ("whatif", "--confidence", "no published runs have optimisations"),
        ("simulate", "--headroom", "estimate, compare, sweep, whatif, plan, cost have it"),
        ("memory", "--isl", "holds whole sequences; use --max-model-len"),
        ("prices", "--gpu", "write the name alone: llmsize prices NAME"),
    ],
)
def test_an_option_of_another_command_is_no_typing_mistake(
    capsys: pytest.CaptureFixture[str], command: str, option: str, said: str
) -> None:
    (told,) = faults(capsys, command, *(LLAMA if command == "whatif" else ()), option, "10%")
    assert said in told and "did you mean" not in told


def test_allowed_values_come_before_what_to_do() -> None:
    assert str(Fault("is wrong", field="--x", remedy="leave it out")) == "--x: is wrong; leave it out"
    both = Fault("is wrong", field="--x", allowed="fp8, bf16", remedy="use it with --rps")
    assert str(both) == "--x: is wrong; allowed: fp8, bf16; use it with --rps"


def test_a_range_for_one_value_is_told_which_command_takes_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = faults(capsys, "estimate", *LLAMA, "--rps", "5..20")
    assert told.startswith("--rps: '5..20' is no number; ranges are for the --vary of llmsize sweep")


def test_two_loads_are_told_without_a_word_of_what_nobody_stated(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = faults(capsys, "simulate", *LLAMA, *LENGTHS, "--rps", "1", "--concurrency", "2")
    assert told.startswith("--rps, --concurrency: states 2 demands")


@pytest.mark.parametrize("command", [["deploy", *LLAMA, *SERVED], ["init", "--answers", "-"]])
def test_an_output_without_a_name_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(capsys, *command, "-o", "") == ["--output: names no file; allowed: a file to write"]


def test_no_option_is_offered_that_the_command_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = faults(capsys, "memory", *LLAMA, "--request-rate", "1")
    assert "--rps" not in told


def test_a_very_long_name_is_cut_and_its_sentence_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "z" * 5000]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "zzz...'; allowed: a name" in line and len(line) < 250


def test_a_way_to_pay_that_is_given_twice_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    twice = [word for way in ("--own", "--cloud", "--api") for word in (way, "1,2", way, "1,3")]
    said = faults(capsys, "cost", "chat", "-g", "h100-sxm", *twice)
    assert [line.partition(" is given 2 times")[0] for line in said] == ["--own:", "--cloud:", "--api:"]
