"""Listings and entries of the catalogue on the terminal, and what the help and the options of commands promise."""

from __future__ import annotations

import json
import re

import pytest

from sizing.catalog.profiles import load_engine, load_gpu
from sizing.cli.main import run
from sizing.formats.text import blocks_of
from sizing.report import listings
from sizing.report.listings import Entry


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command prints, every run of spaces and line breaks as one space."""
    assert run(arguments) == 0
    return " ".join(capsys.readouterr().out.split())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    return error


def lines_of(entry: dict[str, object]) -> list[str]:
    found = listings.document_of_entry(Entry("id", "id.yaml", entry))
    blocks = (block for section in found.sections(found.record) for block in blocks_of(section))
    return [line.text for block in blocks for line in block.lines]


def test_prices_are_of_several_names_and_of_any_name_of_a_gpu_type(capsys: pytest.CaptureFixture[str]) -> None:
    """A list is the rows of each name; a name of a GPU type that answers take is one of prices too."""
    assert run(["prices", "h100-sxm,b200-sxm", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert list(dict.fromkeys(row[0] for row in rows)) == ["h100-sxm", "b200"]
    assert refused(capsys, "prices", "b2000,aws").rstrip().endswith("did you mean b200?")


# --- entries ---


@pytest.mark.parametrize(
    ("value", "text"),
    [(81559, "81559"), (16384, "16384"), (1978.9, "1978.9"), (3350.0, "3350"), (0.00012345, "0.00012345"), (2**40, "1099511627776")],
)  # fmt: skip
def test_an_entry_prints_numbers_as_they_are(value: float, text: str) -> None:
    assert lines_of({"size": value, "inside": {"list": [value, True, None]}})[1:] == [
        f"size: {text}",
        "inside:",
        f"  list: {text}, yes, none",
    ]


def test_a_gpu_shows_datasheet_then_prices_then_measurements_then_each_source_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(capsys, "gpus", "h100-sxm")
    places = [text.index(part) for part in ("datasheet:", "prices:", "efficiency:", " [1] https")]
    assert places == sorted(places)
    assert "nvidia smi mib 81559" in text and "fp8 1978.9" in text
    sources = re.findall(r"\[(\d+)\] (?=https?:|PyPI|aiconfigurator)", text[places[-1] :])
    assert sources == [str(number) for number in range(1, len(sources) + 1)]
    assert text.count("(PyPI), systems/data, fitted") == 1


def test_a_measured_row_is_one_line_with_all_its_constants() -> None:
    spec = load_gpu("h100-sxm").spec
    lines = lines_of(spec.model_dump(json=True, exclude_unset=True))
    rows = lines[lines.index(next(line for line in lines if line.startswith("efficiency:"))) + 1 :][
        : len(spec.efficiency)
    ]
    gemm = spec.efficiency[0]
    assert gemm.operation == "gemm" and gemm.median_error is not None
    expected = (
        f"  gemm {gemm.precision} {gemm.engine} {gemm.version}: t0 us {gemm.t0_us:g}, compute {gemm.compute:g}, "
        f"memory {gemm.memory:g}, p {gemm.p:g} (n {gemm.points}, error {gemm.median_error * 100:.0f} %)"
    )
    assert re.fullmatch(rf"{re.escape(expected)} \[\d+\]", rows[0])
    assert [row.split()[0] for row in rows] == [row.operation for row in spec.efficiency]


def test_measured_rows_of_different_sources_are_numbered_each() -> None:
    row = {"operation": "gemm", "engine": "any", "version": "1", "t0_us": 4.5, "date": "2026"}
    lines = lines_of({"name": "x", "efficiency": [{**row, "source": "a"}, {**row, "source": "b"}]})
    assert lines[2:] == ["efficiency:", "  gemm any 1: t0 us 4.5 [1]", "  gemm any 1: t0 us 4.5 [2]", "[1] a (2026)", "[2] b (2026)"]  # fmt: skip


def test_an_engine_shows_the_conditions_that_it_states_only(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "engines", "vllm")
    assert "when min gpus 8" in text
    written = load_engine("vllm")[0].path.read_text()
    for condition in ("gpu_lacks:", "gpu_contains:", "min_memory_gib:", "min_tp:"):
        assert text.count(condition.replace("_", " ").rstrip(":") + " ") == written.count(condition), condition


def test_an_entry_as_json_has_what_the_file_states(capsys: pytest.CaptureFixture[str]) -> None:
    entry = json.loads(shown(capsys, "engines", "vllm", "--json"))
    assert "when" not in json.dumps(entry["entry"]["settings"]["pool_rule"])
    config = json.loads(shown(capsys, "models", "deepseek-v2-lite", "--json"))["entry"]["config"]
    assert config["q_lora_rank"] is None  # a stated null means something: full-rank queries


# --- help and options ---


@pytest.mark.parametrize("command", ["memory", "step"])
def test_the_help_of_single_layout_commands_offers_no_lists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, command, "--help")
    for wrong in ("with commas", "or all", "are tried"):
        assert wrong not in text
    assert "Tensor parallelism: GPUs that share each layer, 1 by default" in text


def test_the_help_of_estimate_still_offers_lists(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "estimate", "--help")
    assert "several with commas, or all. 8xh100 also means --gpus 8" in text
    assert "Default: the search tries several" in text


@pytest.mark.parametrize("gpu", ["all", "h100-sxm,l4", "l4,all"])
@pytest.mark.parametrize("command", [["memory"], ["step", "--prefill", "8"]])
def test_single_layout_commands_refuse_several_gpus(
    command: list[str], gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--gpu: looks at one GPU type at a time" in refused(capsys, *command, "-m", "llama-3.1-8b", "-g", gpu)


@pytest.mark.parametrize("other", [["--json"], ["--format", "csv"], ["--format", "json", "--json"]])
def test_quiet_contradicts_a_format(other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "estimate", "chat", "-g", "h100-sxm", "--quiet", *other)
    assert (
        error.count("\n") == 1
        and error.startswith("llmsize: --quiet: ")
        and ("--json" in error or "--format csv" in error)
    )


def test_a_beginning_of_several_names_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "memory", "-m", "llama-3.1-8b", "-g", "h10")
    assert "fits several; allowed: h100-nvl, h100-pcie, h100-sxm; did you mean h100-sxm?" in error


def test_a_price_is_listed_once_whatever_its_products(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prices", "h100-sxm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5 and lines.count(next(line for line in lines if "AWS" in line)) == 1
    assert run(["prices", "h100-sxm", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert sum(row[1] == "AWS" for row in found) > 1


@pytest.mark.parametrize(
    ("asked", "first"),
    [("llama3", "llama-3-8b, llama-3-70b"), ("qwen3", "qwen3-4b, qwen3-8b"), ("deepseek", "deepseek-r1, deepseek-v2")],
)
def test_of_many_names_the_most_similar_are_listed(asked: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "memory", "-m", asked, "-g", "h100-sxm")
    assert f"fits several; allowed: {first}" in error and " more (`llmsize models`)" in error and len(error) < 300


@pytest.mark.parametrize(("asked", "likely"), [("llama-70", "llama-3.1-70b"), ("deepseek-r1-70b", "llama-3.3-70b")])
def test_a_name_of_the_right_words_is_likely(asked: str, likely: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert likely in refused(capsys, "memory", "-m", asked, "-g", "h100-sxm").partition("did you mean")[2]


def test_a_beginning_of_several_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "bge", "--json"]) == 0
    names = [row[0] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert len(names) > 3 and "bge-m3" in names and all(name.startswith("bge-") for name in names)
    assert run(["gpus", "a100"]) == 0
    assert "a100-sxm-80gb" in capsys.readouterr().out
    assert "unknown" in refused(capsys, "models", "no-such-model")


def test_a_format_of_checkpoints_names_the_precision_of_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "100", "--osl", "10", "--rps", "1"
    for name in ("awq", "gptq"):
        error = refused(capsys, *asked, "--precision", name)
        assert "write int4, or with -m the name of a checkpoint in this format, which states it" in error


def test_missing_lengths_point_to_ready_workloads(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "estimate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--rps", "1")
    assert error.count("llmsize workloads") == 1 and "--isl: is required" in error
