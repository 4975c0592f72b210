"""The roofline: ridge and intensity worked by hand, no operation above its roof, where decode turns compute-bound."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from sizing.answers.deployment import deployment
from sizing.cli.main import run
from sizing.cli.options import STEP_OPTIONS
from sizing.formats.text import render
from sizing.question.ask import layout_question
from sizing.question.options import GivenOptions, options_of
from sizing.replica.intensity import MOST_SEQUENCES, ridge_flops_per_byte, roof_flops_per_s, smallest_batch
from sizing.report.roofline import RooflineReport, StepSizes, record
from sizing.report.roofline import document as as_document

LLAMA = ["roofline", "-m", "meta-llama/Llama-3.1-70B-Instruct", "-g", "h100-sxm", "--tp", "4"]
RIDGE = 989.4e12 / 3350e9  # H100 SXM: dense bf16 peak over memory bandwidth = 295.34 FLOP/byte


def found(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def built() -> RooflineReport:
    values = {option.name: None for option in STEP_OPTIONS} | {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
    return record(
        deployment(layout_question(options_of(GivenOptions(STEP_OPTIONS, values)))), StepSizes((1, 8), (128,), 1000)
    )


def points(document: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [o for o in document["operations"] if all(o[key] == value for key, value in wanted.items())]


# --- the roof ----------------------------------------------------------------------------------------------------


def test_the_ridge_is_peak_over_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    (roof,) = found(LLAMA, capsys)["roofs"]
    assert (roof["precision"], roof["peak_flops_per_s"]) == ("bf16", 989.4e12)
    assert roof["bandwidth_bytes_per_s"] == 3350e9
    assert roof["ridge_flops_per_byte"] == pytest.approx(295.34, abs=0.01)


def test_a_roof_is_a_slope_and_then_flat() -> None:
    assert ridge_flops_per_byte(1000.0, 10.0) == 100
    assert [roof_flops_per_s(x, 1000.0, 10.0) for x in (1, 50, 100, 500)] == [10, 500, 1000, 1000]


@pytest.mark.parametrize(
    "arguments",
    [
        LLAMA,
        [*LLAMA, "--precision", "fp8", "--kv-precision", "fp8"],
        ["roofline", "-m", "deepseek-ai/DeepSeek-V3", "-g", "h200-sxm", "--tp", "8"],
        ["roofline", "-m", "deepseek-ai/DeepSeek-V3", "-g", "b200-sxm", "--tp", "1"],
        ["roofline", "-m", "openai/gpt-oss-120b", "-g", "h100-sxm"],
        ["roofline", "-m", "llama-3.1-8b", "-g", "l40s", "--precision", "int4"],
    ],
)
def test_no_operation_is_above_its_roof(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    document = found(arguments, capsys)
    peaks = {roof["precision"]: roof["peak_flops_per_s"] for roof in document["roofs"]}
    bandwidth = document["roofs"][0]["bandwidth_bytes_per_s"]
    assert any(o["flops"] > 0 for o in document["operations"])
    for o in document["operations"]:
        if o["flops"] > 0:
            intensity = o["flops"] / o["bytes"]
            assert o["intensity_flops_per_byte"] == pytest.approx(intensity)
            assert o["attained_flops_per_s"] == pytest.approx(o["flops"] / o["seconds"])
            assert o["roof_flops_per_s"] == pytest.approx(min(peaks[o["precision"]], bandwidth * intensity))
            assert o["share_of_roof"] == pytest.approx(o["attained_flops_per_s"] / o["roof_flops_per_s"])
        if o["share_of_roof"] is not None:
            # Efficiencies measured on these cards stay below the datasheet's peaks.
            assert 0 < o["share_of_roof"] <= 1 + 1e-9, o
        if o["name"] == "route" and o["seconds"] == 0:
            # The measured kernel of the experts routes too: the work of both fits in its time, the little of routing to 1e-4.
            (both,) = points(
                document, phase=o["phase"], batch=o["batch"], prompt_tokens=o["prompt_tokens"], name="experts"
            )
            assert both["seconds"] * bandwidth >= (1 - 1e-4) * (both["bytes"] + o["bytes"])
        else:
            assert (o["share_of_roof"] is None) == (o["flops"] == 0 == o["bytes"])
        assert (o["bound"] == "link") == (o["message_bytes"] > 0)


def test_a_share_above_the_roof_is_explained() -> None:
    """Bandwidths of routed experts fitted on newer cards are up to 1.2 times the datasheet's."""
    document = built()
    first, *others = document.operations
    above = document._replace(operations=(first._replace(share_of_roof=1.02), *others))
    assert ["Above 100 %" in render(as_document(one)) for one in (document, above)] == [False, True]


# --- the same numbers as `step` ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "step", "label"),
    [
        (["--batch", "64", "--context", "3000"], ["--decode", "64", "--context", "3000"], {"batch": 64}),
        (["--prefill", "777"], ["--prefill", "777"], {"prompt_tokens": 777}),
    ],
)
def test_a_step_is_that_of_the_step_command(
    sizes: list[str], step: list[str], label: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    ours = found([*LLAMA, *sizes], capsys)
    theirs = found(["step", *LLAMA[1:], *step], capsys)
    operations = {o["name"]: o for o in points(ours, **label)}
    assert set(operations) == {o["name"] for o in theirs["operations"]}
    for other in theirs["operations"]:
        one = operations[other["name"]]
        for key in ("flops", "bytes", "message_bytes", "seconds", "bound"):
            assert one[key] == other[key], (other["name"], key)
    (whole,) = [s for s in ours["steps"] if all(s[key] == value for key, value in label.items())]
    assert (whole["seconds"], whole["mfu"], whole["mbu"]) == (theirs["total_s"], theirs["mfu"], theirs["mbu"])


# --- intensity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_16_bit_product_of_b_rows_has_about_b_flop_per_byte(batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    # 2*b*I*O FLOPs over 2*I*O + 2*b*(I + O) bytes = b / (1 + b*(1/I + 1/O)); the second term is small.
    document = found([*LLAMA, "--batch", str(batch)], capsys)
    for name in ("qkv_proj", "o_proj", "mlp_up", "mlp_down"):
        (one,) = points(document, batch=batch, name=name)
        assert 0.95 * batch < one["intensity_flops_per_byte"] < batch


def test_attention_of_grouped_heads_has_one_intensity(capsys: pytest.CaptureFixture[str]) -> None:
    # 64 query heads share 8 KV heads: a cached key of 2 bytes takes part in 8 products of 2 FLOPs, so 8 FLOP/byte.
    document = found(LLAMA, capsys)
    decode = points(document, name="decode_gqa")
    assert [o["batch"] for o in decode] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert {o["intensity_flops_per_byte"] for o in decode} == {8.0}
    crossing = document["compute_bound_from"]["by_operation"]["decode_gqa"]
    assert crossing["batch"] is None and crossing["grows"] is False


def test_where_a_product_turns_compute_bound_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    # b / (1 + b*(1/I + 1/O)) = R, so b = R / (1 - R*(1/I + 1/O)). The QKV projection at TP4 takes 8,192 values and
    # gives (64 + 2*8) * 128 / 4 = 2,560: 295.34 / (1 - 295.34*(1/8192 + 1/2560)) = 348.04, hence 349.
    document = found(LLAMA, capsys)
    crossing = document["compute_bound_from"]["by_operation"]["qkv_proj"]
    assert math.ceil(RIDGE / (1 - RIDGE * (1 / 8192 + 1 / 2560))) == 349
    assert crossing["batch"] == 349
    below, at = (found([*LLAMA, "--batch", str(b)], capsys) for b in (348, 349))
    assert points(below, name="qkv_proj", phase="decode")[0]["bound"] == "memory"
    assert points(at, name="qkv_proj", phase="decode")[0]["bound"] == "compute"


def test_products_together_cross_between_the_first_and_the_last_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    found_from = found(LLAMA, capsys)["compute_bound_from"]
    batches = [one["batch"] for one in found_from["by_operation"].values() if one["batch"] is not None]
    assert min(batches) < found_from["decode_batch"] < max(batches)
    # At 2,048 tokens attention's bytes grow with every sequence, faster than the FLOPs of the products' weights.
    assert found_from["whole_step_batch"] is None


def test_at_a_short_context_the_whole_step_turns_compute_bound_later_than_its_products(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found_from = found([*LLAMA, "--context", "16"], capsys)["compute_bound_from"]
    assert found_from["decode_batch"] < found_from["whole_step_batch"] < 1000


@pytest.mark.parametrize("threshold", [1, 2, 3, 7, 8, 9, 1000, MOST_SEQUENCES])
def test_bisection_finds_the_first_that_holds(threshold: int) -> None:
    assert smallest_batch(lambda n: n >= threshold) == threshold


def test_bisection_gives_up_at_the_most() -> None:
    assert smallest_batch(lambda n: n > MOST_SEQUENCES) is None
    assert smallest_batch(lambda n: n >= 5, most=4) is None


# --- the command -------------------------------------------------------------------------------------------------


def test_the_context_is_that_of_the_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    # Half of the output is written at a mean context: 1,000 + 500/2.
    document = found([*LLAMA, "--isl", "1000", "--osl", "500"], capsys)
    assert document["inputs"]["context_tokens"] == 1250


def test_lists_take_numbers_and_doublings(capsys: pytest.CaptureFixture[str]) -> None:
    inputs = found([*LLAMA, "--batch", "1..20x2,3", "--prefill", "100"], capsys)["inputs"]
    assert inputs["batches"] == [1, 2, 3, 4, 8, 16, 20]
    assert inputs["prompt_tokens"] == [100]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "0"], "--batch: 0 is no whole number"),
        (["--batch", "8..2"], "--batch: '8..2' is no range"),
        (["--batch", ","], "--batch: names no number"),
        (["--prefill", "a"], "--prefill: 'a' is neither a number nor a range"),
        (["--batch", "5000"], "--batch: 5,000 sequences are more than the engine takes"),
        (["--prefill", "100000"], "--prefill: 100,000 tokens are more than the engine takes"),
        (["--context", "200000"], "--context: 200,000 tokens exceed the model's 131,072 positions"),
        (["--context", "0"], "--context: 0 is out of range"),
        (["--isl", "100"], "--isl, --osl: are the mean context together"),
        (["--isl", "100", "--osl", "9", "--context", "7"], "--context: is stated by --isl and --osl already"),
        (["--tp", "3"], "--tp, --pp, --ep, --dp, --cp, --dcp: TP3 is refused"),
        (["--plot", "x.gif"], "--plot: 'x.gif' has no known ending"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*LLAMA, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"llmsize: {said}") and err.count("\n") == 1


def test_the_table_says_where_decode_turns_compute_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*LLAMA, "--verbose"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "products with weights are compute-bound from 322 sequences on" in out
    assert "Attention (decode_gqa) is never compute-bound" in out
    assert "ridge at 295.3 FLOP per byte" in out


def test_rows_are_one_an_operation(capsys: pytest.CaptureFixture[str]) -> None:
    document = found(LLAMA, capsys)
    assert run([*LLAMA, "--format", "csv"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("model,gpu,engine") and head.endswith("share_of_roof,bound")
    assert len(rows) == len(document["operations"])


def test_the_picture_has_roof_operations_units_and_labels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "roofline.svg"
    assert run([*LLAMA, "--precision", "fp8", "--plot", str(target)]) == 0
    svg = target.read_text(encoding="utf-8")
    for text in (
        "arithmetic intensity (FLOP per byte of device memory)",
        "attained (TFLOP/s per GPU)",
        "roof, FP8: 1,979 TFLOP/s,",
        "roof, BF16: 989.4 TFLOP/s,",
        "qkv_proj",
        "decode_gqa",
        "prefill_gqa",
        "FP8 weights",
        "TP4 on H100 SXM 80GB",
        "2,048 tokens of context",
    ):
        assert text in svg, text


@pytest.mark.parametrize(("suffix", "starts"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_picture_has_the_form_of_its_ending(suffix: str, starts: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"roofline.{suffix}"
    assert run([*LLAMA, "--batch", "1", "--prefill", "128", "--plot", str(target)]) == 0
    assert target.read_bytes().startswith(starts)


def test_without_matplotlib_the_numbers_are_printed_still(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    asked = ["roofline", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--plot", str(tmp_path / "x.svg")]
    assert run(asked) == 2
    captured = capsys.readouterr()
    assert "compute-bound from" in captured.out
    assert (
        captured.err
        == "llmsize: --plot: needs matplotlib, which is not installed; it works after pip install 'llmsize[plot]'\n"
    )


def test_the_terminal_shows_operations_under_the_roof(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["roofline", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--precision", "bf16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("TFLOP/s per GPU over FLOP per byte of device memory")
    drawn = [line[9:] for line in lines[start + 1 : start + 16]]
    assert (
        lines[start + 1].split()[0] == "989" and "=" in drawn[0]
    )  # the peak of H100 in BF16, 989.4 TFLOP/s, is the top
    for column in range(51):  # nothing stands above the roof
        marks = [row[column] for row in drawn if len(row) > column and row[column] != " "]
        assert "=" not in marks[1:] or set(marks[: marks.index("=")]) == set()
