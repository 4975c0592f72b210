"""Input nobody means: endless names, pipes without an end, numbers beyond all bounds; each is one line, never a traceback."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from sizing.catalog import files
from sizing.catalog.config.model import read_model
from sizing.catalog.files import MAX_DIGITS, read_json, read_text, read_yaml, validate
from sizing.catalog.models import load_model
from sizing.catalog.profiles import load_gpu
from sizing.catalog.shelf import only
from sizing.catalog.traces import load_trace
from sizing.catalog.workloads import load_workload
from sizing.cli.main import run
from sizing.specs.errors import InputError
from sizing.specs.model import CheckpointRules
from sizing.specs.units import comma_separated, lognormal_mean_below, on_one_line, parse_duration_s, printable
from sizing.specs.workload import MOST_GPU_TYPES, Workload

LONG = "x" * 400  # no file system takes a name of more than 255 bytes
ASKED = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200"]
ESCAPE = "a\x1b[31mb\u202ec"
ESCAPED = "a\\x1b[31mb\\u202ec"


def one_fault(found: pytest.ExceptionInfo[InputError]) -> str:
    (fault,) = found.value.faults
    return str(fault)


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr of a command that refuses its input."""
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# --- names and paths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [LONG, f"{LONG}/a", f"./{LONG}.json", f"/{LONG}.yaml", "~no-such-user/x", "a\0b.yaml"])
@pytest.mark.parametrize("load", [load_model, load_gpu, load_workload])
def test_a_name_that_no_file_can_have_is_not_found(load: Any, name: str) -> None:
    with pytest.raises(InputError):
        load(name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["estimate", *ASKED, "--rps", "1", "--engine", LONG],
        ["estimate", *ASKED, "--rps", "1", "--engine", f"./{LONG}.yaml"],
        ["simulate", "--ticks", "--requests", "1", "--plot", f"{LONG}.svg"],
        ["simulate", "--ticks", "--requests", "1", "--requests-out", f"{LONG}.csv"],
        ["validate", f"{LONG}.csv"],
        ["workloads", f"{LONG}.yaml"],
    ],
)
def test_a_long_name_is_one_line_under_every_option(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "xxx" in refusal(arguments, capsys)


@pytest.mark.parametrize("look", [files.is_file, files.is_folder, files.exists])
@pytest.mark.parametrize("name", [LONG, "a\0b", "~no-such-user/x"])
def test_looking_at_a_path_never_raises(look: Any, name: str) -> None:
    assert look(Path(name)) is False
    assert files.expanded("~no-such-user/x") == Path("~no-such-user/x")
    assert files.out_of_reach(Path(LONG)) == "File name too long"
    assert files.out_of_reach(Path("not-there.csv")) is None


# --- what is no regular file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "words"), [("/dev/null", "is a device"), ("/", "is a folder")])
def test_only_files_are_read(path: str, words: str) -> None:
    for read in (read_text, load_trace):
        with pytest.raises(InputError, match=words):
            read(Path(path))


@pytest.mark.parametrize("read", [read_text, load_trace])
def test_a_pipe_without_a_writer_is_a_fault_and_no_wait(read: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="nobody writes to"):
        read(tmp_path / "pipe")
    with pytest.raises(InputError, match="nobody reads from this pipe"):
        files.write_bytes(tmp_path / "pipe", b"x")


def test_a_pipe_that_stays_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIPE_PATIENCE_S", 0.01)
    os.mkfifo(tmp_path / "pipe")
    holder = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with pytest.raises(InputError, match="nothing came"):
            read_text(tmp_path / "pipe")
    finally:
        os.close(holder)


@pytest.mark.parametrize("size", [10, 300_000])  # below and above what a pipe holds at once
def test_a_pipe_with_a_writer_is_read_to_its_end(size: int) -> None:
    out, into = os.pipe()
    content = b"y" * size

    def write() -> None:
        with os.fdopen(into, "wb") as stream:
            stream.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert read_text(f"/dev/fd/{out}") == content.decode()
    finally:
        writer.join()
        os.close(out)


def test_a_trace_comes_through_a_pipe_whole() -> None:
    out, into = os.pipe()
    os.write(into, b"arrival_s,input_tokens,output_tokens\n3,10,20\n4.5,11,21\n")
    os.close(into)
    assert load_trace(f"/dev/fd/{out}").tolist() == [[0.0, 10.0, 20.0], [1.5, 11.0, 21.0]]
    os.close(out)


# --- characters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Llama 3.1 × 8B – µs", "Llama 3.1 × 8B – µs"),
        ("1\u202f000\u00a0GB", "1\u202f000\u00a0GB"),
        ("\x1b]0;t\x07", "\\x1b]0;t\\x07"),
        ("\udcff.yaml", "\\udcff.yaml"),
        ("a\nb\x7f", "a\\nb\\x7f"),
        ("\u200b\u202e", "\\u200b\\u202e"),
    ],
)
def test_what_has_no_shape_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_description_keeps_its_words_on_one_line() -> None:
    assert on_one_line("first\n\tsecond\x1b") == "first  second\\x1b"


@pytest.mark.parametrize(
    "arguments", [["gpus", ESCAPE], ["estimate", f"./{ESCAPE}.yaml"], [ESCAPE], ["gpus", f"--{ESCAPE}"]]
)
def test_a_message_steers_no_terminal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ESCAPED in refusal(arguments, capsys)


@pytest.mark.parametrize("name", ["\udcff\udcfe", "./\udcff.yaml"])
def test_a_name_that_is_no_utf_8_can_be_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "\\udcff" in refusal(["workloads", name], capsys)


def test_no_format_for_people_passes_control_characters_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_model("llama-3.1-8b").path
    written = yaml.safe_load(config.read_text(encoding="utf-8"))["config"]
    (tmp_path / ESCAPE).mkdir()
    path = tmp_path / ESCAPE / "config.json"
    path.write_text(json.dumps(written))
    for form in ("table", "markdown", "csv", "json"):
        assert (
            run(["step", "-m", str(path), "-g", "h100-sxm", "--decode", "1", "--context", "9", "--format", form]) == 0
        )
        out = capsys.readouterr().out
        assert "\x1b" not in out and "\u202e" not in out, form


# --- numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("price", ["1e308", "1e300", "1001", "0.0009", "1e-300", "0", "-1", "inf", "nan"])
def test_a_price_out_of_range_never_reaches_a_product(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(["estimate", *ASKED, "--rps", "1", "--price", price], capsys)
    assert "--price" in line and "from 0.001 to 1,000" in line


@pytest.mark.parametrize("text", ["1e-300s", "0.9us", "1e300h", "8785h", "1e308s"])
def test_a_duration_beyond_any_run_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="out of range, from 1us to 8,784h"):
        parse_duration_s(text)


@pytest.mark.parametrize(("text", "seconds"), [("1us", 1e-6), ("366d", 31_622_400.0), ("8784h", 31_622_400.0)])
def test_the_bounds_of_a_duration_are_in_range(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("std", "longest", "mean"), [(1e-300, 4000, 1000), (1e-9, 4000, 1000), (1e-300, 900, 900)])
def test_lengths_that_hardly_spread_keep_their_mean(std: float, longest: float, mean: float) -> None:
    assert lognormal_mean_below(1000, std, longest) == pytest.approx(mean)


@pytest.mark.parametrize(
    "line",
    [
        "limits: {itl: {p: 1e-9}}",
        "limits: {itl: {p99: 1e-9}}",
        "limits: {itl: {p99: 1e-9s}}",
        "limits: {itl: {p99.9999: 1s}}",
        "limits: {itl: {statistic: p99, seconds: 1e300}}",
        "planning: {peak_to_mean: 1e300}",
        "planning: {requests_per_user_per_day: 1e300}",
        "planning: {headroom: 1e300}",
        f"serving: {{tp: {10**30}}}",
    ],
)
def test_an_extreme_of_a_workload_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"model: llama-3.1-8b\ntokens: {{isl: 10, osl: 10}}\n{line}\n")
    with pytest.raises(InputError) as found:
        load_workload(str(path))
    assert f"{path}:3" in one_fault(found)


# --- GPU profiles ----------------------------------------------------------------------------------------------

SOURCE = {"engine": "any", "version": "1", "source": "s", "date": "2026-11"}
ATTENTION = {
    "operation": "prefill_attention", "precision": "fp16", "cache_precision": "fp16", "head_dim": 128, "t0_us": 1.0,
    "compute": 0.5, "tokens": [100, 200], "flop_fraction": [0.1, 0.2], **SOURCE,
}  # fmt: skip
COLLECTIVE = {
    "operation": "all_reduce", "backend": "nccl", "gpus": 2, "alpha_us": 1.0, "bus_gb_per_s": 100.0,
    "kib": [1.0, 2.0], "us": [3.0, 4.0], **SOURCE,
}  # fmt: skip
GEMM = {"operation": "gemm", "precision": "fp16", "t0_us": 1.0, "compute": 0.5, "memory": 0.5, "p": 1.0, **SOURCE}


def profile(tmp_path: Path, row: dict[str, Any], **datasheet: Any) -> str:
    """A user's GPU profile: the H100's datasheet with one row of efficiency."""
    held = yaml.safe_load(load_gpu("h100-sxm").path.read_text(encoding="utf-8"))
    held.update(efficiency=[row], prices=[])
    held["datasheet"].update(datasheet)
    path = tmp_path / "gpu.yaml"
    path.write_text(json.dumps(held))
    return str(path)


@pytest.mark.parametrize("row", [ATTENTION, COLLECTIVE, GEMM])
def test_a_right_row_is_read(row: dict[str, Any], tmp_path: Path) -> None:
    assert len(load_gpu(profile(tmp_path, row)).spec.efficiency) == 1


@pytest.mark.parametrize(
    ("row", "change", "words"),
    [
        (ATTENTION, {"tokens": []}, "tokens is empty"),
        (ATTENTION, {"tokens": [100]}, "flop_fraction has 2 values, tokens has 1"),
        (ATTENTION, {"flop_fraction": []}, "flop_fraction has 0 values, tokens has 2"),
        (ATTENTION, {"tokens": [200, 100]}, "tokens must ascend"),
        (ATTENTION, {"tokens": [100, 100]}, "tokens must ascend"),
        (ATTENTION, {"tokens": [0, 100]}, "above 0"),
        (ATTENTION, {"flop_fraction": [0.1, 1e300]}, "at most 1,"),
        (ATTENTION, {"t0_us": 1e300}, "at most 1,000,000,000,000"),
        (COLLECTIVE, {"kib": [], "us": []}, "kib is empty"),
        (COLLECTIVE, {"us": [3.0]}, "us has 1 values, kib has 2"),
        (COLLECTIVE, {"kib": [2.0, 1.0]}, "kib must ascend"),
        (COLLECTIVE, {"us": [3.0, -4.0]}, "above 0"),
        (COLLECTIVE, {"bus_gb_per_s": 1e300}, "at most 1,000,000,000,000"),
        (GEMM, {"p": 1e-300}, "of at least 0.1"),
        (GEMM, {"p": 1e300}, "at most 1,000"),
    ],
)
def test_a_bad_curve_of_a_profile_is_named(
    row: dict[str, Any], change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as found:
        load_gpu(profile(tmp_path, {**row, **change}))
    text = one_fault(found)
    assert "efficiency[0]" in text and words in text


@pytest.mark.parametrize("watts", [1e300, -1.0, 0.0])
def test_a_datasheet_out_of_range_is_named(watts: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"datasheet\.tdp_w.*10 to 5,000"):
        load_gpu(profile(tmp_path, GEMM, tdp_w=watts))


# --- config.json -----------------------------------------------------------------------------------------------

MOE = "qwen3-30b-a3b"
BAD_VALUES = (math.nan, math.inf, -math.inf, 1e308, -1, 10**30, [math.inf], [math.nan], [[1]], {"a": math.inf})


def config_of(name: str) -> dict[str, Any]:
    held: dict[str, Any] = yaml.safe_load(load_model(name).path.read_text(encoding="utf-8"))["config"]
    return held


@pytest.mark.parametrize("bad", BAD_VALUES, ids=repr)
def test_any_field_of_a_config_is_read_or_refused(bad: Any) -> None:
    held = config_of(MOE)
    for key in (*held, "moe_layers", "moe_layer_freq", "layer_types", "mlp_only_layers", "block_configs"):
        try:
            read_model({**held, key: bad}, name="m", source="s", where="config.json")
        except InputError as error:
            assert all(len(str(fault)) < 1000 for fault in error.faults)


@pytest.mark.parametrize("layers", [[math.inf], [math.nan], [[1]], math.inf, "1,x"])
def test_layer_numbers_that_are_none_are_named(layers: Any) -> None:
    with pytest.raises(InputError, match=r"moe_layers.*is not a list of layer numbers"):
        read_model({**config_of(MOE), "moe_layers": layers}, name="m", source="s")


@pytest.mark.parametrize("digits", [MAX_DIGITS + 1, 4_000, 5_000])
def test_a_number_of_thousands_of_digits_is_named_with_its_line(digits: int, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n"hidden_size": 4096,\n"vocab_size": ' + "9" * digits + "}")
    with pytest.raises(InputError) as found:
        read_json(path)
    assert one_fault(found) == f"{path}:3: holds a number of {digits:,} digits; allowed: at most {MAX_DIGITS} digits"


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_json, '{"a":' * 100_000),
        (read_json, '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
        (read_yaml, "a: " + "[" * 100_000),
        (read_yaml, "".join(" " * depth + "a:\n" for depth in range(500))),
        (read_yaml, "a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n"),
    ],
)
def test_nesting_without_end_is_refused(read: Any, content: str, tmp_path: Path) -> None:
    path = tmp_path / "deep"
    path.write_text(content)
    with pytest.raises(InputError, match=r"nested|anchor"):
        read(path)


# --- an index beside a config ----------------------------------------------------------------------------------

# Llama 3.1 8B: 8,030,261,248 parameters in BF16.
WEIGHTS_BYTES = 16_060_522_496
TABLES_BYTES = 131_072 * 128 * 2  # of rotary embeddings, which no checkpoint holds


@pytest.mark.parametrize("factor", [1.0, 1.85, 1 / 1.85])
def test_an_index_near_the_config_is_taken(factor: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = checkpoint(tmp_path, round(WEIGHTS_BYTES * factor))
    assert run(["memory", *asked, "--max-model-len", "1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (WEIGHTS_BYTES * factor + TABLES_BYTES) / 2**30 == pytest.approx(weights_gib(found), rel=1e-3)


@pytest.mark.parametrize(
    ("size", "stated"), [(123_456, "0.000123456 GB"), (8_030_261_248, "8.03026 GB"), (10**14, "100,000 GB")]
)
@pytest.mark.parametrize("command", [["memory"], ["step", "--decode", "1", "--context", "9"], ["estimate", "--isl", "9", "--osl", "9", "--rps", "1"]])  # fmt: skip
def test_an_index_far_from_the_config_is_refused_with_both_sizes(
    command: list[str], size: int, stated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal([*command, *checkpoint(tmp_path, size)], capsys)
    assert "model.safetensors.index.json" in line and "metadata.total_size" in line
    assert stated in line and "16.0605 GB" in line


def test_another_storage_width_is_outside_of_the_bound() -> None:
    assert 1 < only(CheckpointRules).largest_ratio < 2


def checkpoint(folder: Path, size: int) -> list[str]:
    (folder / "config.json").write_text(json.dumps(config_of("llama-3.1-8b")))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}}))
    return ["-m", str(folder), "-g", "h100-sxm"]


def weights_gib(document: dict[str, Any]) -> float:
    found: float = document["memory"]["weights_gib"]
    return found


# --- repetition ------------------------------------------------------------------------------------------------


def test_a_gpu_named_again_and_again_counts_once() -> None:
    assert comma_separated(",".join(["h100-sxm", "l4"] * 200_000)) == ["h100-sxm", "l4"]
    workload = Workload.model_validate({"model": "m", "tokens": {"isl": 1, "osl": 1}, "gpu": ["h100-sxm"] * 400_000})
    assert workload.gpu == ("h100-sxm",)


def test_more_gpu_types_than_exist_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "model: llama-3.1-8b\ntokens: {isl: 1, osl: 1}\ngpu: " + json.dumps([f"g{i}" for i in range(10_000)])
    )
    with pytest.raises(InputError, match=f"holds 10,000 names, at most {MOST_GPU_TYPES}"):
        validate(Workload, read_yaml(path))
