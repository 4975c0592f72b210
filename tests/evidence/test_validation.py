"""What a measured row means, how it is predicted by mode, and how errors are summed up."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from io import StringIO

import pytest
from places import DATA

from sizing.catalog import shelf
from sizing.catalog.measured import MeasuredRow, load_measured
from sizing.catalog.profiles import load_engine
from sizing.cli.workers import ordered
from sizing.evidence.errors import Comparison, check_columns, compare, groups, statistics
from sizing.evidence.notes import NoteFacts, doubts, facts_of, version_of
from sizing.evidence.predict import predict, predict_row, predict_rows
from sizing.evidence.rows import case_of_row, layout_of_row, rounded_up
from sizing.formats.text import render_for
from sizing.model.architecture import Layout
from sizing.report import validate
from sizing.specs.bands import Correction, Corrections, region
from sizing.specs.calibration import NotFitted
from sizing.specs.errors import InputError
from sizing.specs.measurements import Conventions

SAMPLE = DATA / "measured_sample.csv"
CONVENTIONS = shelf.only(Conventions)

ROW = MeasuredRow(
    id="a",
    engine="vLLM",
    engine_version="0.10.2",
    model="meta-llama/Llama-3.1-8B",
    gpu="H100-SXM-80GB",
    weight_precision="bf16",
    isl=1000,
    osl=100,
    mode="closed_loop",
    concurrency=1,
    n_gpus=1,
    tp=1,
    ttft_ms=30.0,
    itl_ms=8.0,
    e2e_ms=800.0,
    req_per_s=1.0,
    output_tok_per_s=100.0,
)


def predicted(notes: str) -> dict[str, float]:
    found = predict_row(replace(ROW, notes=notes)).prediction
    assert found is not None
    return found.values


def test_drafts_and_cached_prefixes_of_a_run_are_predicted() -> None:
    plain = predicted("")
    drafted = [predicted(f"speculative decoding: eagle3:3@{share}") for share in (0.3, 0.8)]
    assert plain["itl_ms"] > drafted[0]["itl_ms"] > drafted[1]["itl_ms"]
    of_steps = predicted("speculative decoding: eagle3:3, 2.952 tokens a step")  # 1 + 0.8 + 0.8^2 + 0.8^3
    assert of_steps["itl_ms"] == pytest.approx(drafted[1]["itl_ms"], rel=1e-3)
    found = predicted("prefix caching: 80% of prompt tokens were found")
    assert found["ttft_ms"] < plain["ttft_ms"] and found["itl_ms"] == pytest.approx(plain["itl_ms"], rel=0.02)


@pytest.mark.parametrize(
    ("notes", "why"),
    [
        ("speculative decoding: eagle9:3@0.7", "is no method of speculative decoding"),
        ("speculative decoding: eagle3", "are not stated in its notes"),
        ("speculative decoding: eagle3:0@0.7", "above 0"),
        ("speculative decoding: eagle3:3, 9 tokens a step", "9 tokens a step, where 3 are drafted"),
        ("disaggregated", "separate GPUs"),
    ],
)
def test_what_a_row_does_not_say_of_its_drafts_is_the_reason(notes: str, why: str) -> None:
    assert why in str(predict_row(replace(ROW, notes=notes)).skipped)


# --- versions, notes, layouts ------------------------------------------------------------------------------------


def test_a_row_without_a_version_is_said_to_state_none() -> None:
    engine = load_engine("tensorrt-llm")[0].spec
    found, note = version_of(engine, "", "a file", CONVENTIONS)
    assert found == engine.newest and note == f"tensorrt-llm states no version, taken as the newest, {found}"


@pytest.mark.parametrize(
    ("engine", "stated", "source", "version"),
    [
        ("tensorrt-llm", "0.15.0", "", "0.15.0"),
        ("tensorrt-llm", "1.0 era (2024), not stated", "", "0.10.0"),  # the table goes before the number in the text
        ("tensorrt-llm", "0.20-nocudagraph", "", "0.20"),  # the number in the text
        ("tensorrt-llm", "1.1-1.2", "", "1.1"),
        ("vllm", "0.8.x", "", "0.8"),
        ("vllm", "", "argonne LLM-Inference-Bench", "0.6.1"),
        ("vllm", "", "somewhere else", "0.33.0"),  # nothing to go by: the newest
        ("vllm", "0.1.7", "", "0.4.0"),  # before the oldest known
        ("sglang", "9.9", "", "0.5.23"),  # after the newest known
    ],
)
def test_versions_are_taken_by_table_then_number_then_newest(
    engine: str, stated: str, source: str, version: str
) -> None:
    found, note = version_of(load_engine(engine)[0].spec, stated, source, CONVENTIONS)
    assert found == version
    assert (note is None) == (stated == version)  # what was chosen for the row is said


def test_facts_are_read_from_notes() -> None:
    def facts(notes: str) -> NoteFacts:
        return facts_of(notes, CONVENTIONS.notes)

    assert facts("offered request rate QPS=INF; means").rate_per_s == math.inf
    assert facts("rate=16; ShareGPT means").rate_per_s == 16.0
    assert facts("serve MODEL --tp-size 8 --dp-size 4 --enable-dp-attention").attention_dp == 4
    assert facts("attention data parallel + expert parallel").attention_dp == "ranks"
    assert facts("max-num-seqs=1024 num-scheduler-step=15").max_num_seqs == 1024
    assert facts("max-num-seqs=1024 num-scheduler-step=15").scheduler_steps == 15
    assert facts("MEDIAN ttft/tpot/e2e").statistic == "p50"
    assert facts("TTFT/TPOT statistic (mean or median) not stated") == NoteFacts()


def test_requests_in_flight_over_several_workers_are_read_as_those_of_one_and_said() -> None:
    image = "image nvcr.io/nvidia/ai-dynamo/runtime:0.8.1; batch_size column 8 (per attention-DP rank or per worker)"
    over_all = replace(ROW, concurrency=64, num_requests=640, notes=image)
    case = case_of_row(over_all)
    assert (case.traffic.in_flight, case.traffic.count) == (8, 80)
    assert "64 in flight over 8 workers: 8 on each" in case.notes
    assert case_of_row(replace(over_all, notes="")).traffic.in_flight == 64


def test_compiled_engines_attend_to_the_whole_context_where_a_model_has_windows() -> None:
    row = replace(ROW, engine="tensorrt-llm", model="mistralai/Mistral-7B-v0.1", isl=20_000)  # a window of 4,096
    full, cut = (case_of_row(replace(row, engine_version=of)).replica.memory.resident_gib for of in ("0.14", "1.0"))
    assert full > 4 * cut


def test_a_host_that_schedules_several_steps_at_once_spends_its_time_once_and_looks_at_arrivals_once() -> None:
    one = case_of_row(replace(ROW, engine="vllm", engine_version="0.6.4"))
    several = case_of_row(replace(ROW, engine="vllm", engine_version="0.6.4", notes="num-scheduler-step=10"))
    assert several.deployed.rules.poll_steps == 10
    assert several.deployed.kernels.host.sequence_us == pytest.approx(one.deployed.kernels.host.sequence_us / 10)
    assert several.deployed.kernels.host.per_step_us == pytest.approx(one.deployed.kernels.host.per_step_us / 10)


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        ("rate=0", "rate_per_s '0' is out of range; allowed: 1e-06 to 1,000,000,000"),
        ("rate=1.2.3", "rate_per_s '1.2.3' is no number"),
        ("--max-num-seqs 900000000", "max_num_seqs '900000000' is out of range; allowed: whole numbers, 1 to 500,000"),
        ("--dp-size 0 --enable-dp-attention", "attention_dp '0' is out of range"),
    ],
)
def test_a_number_in_the_notes_is_held_to_the_bounds_of_a_column(notes: str, reason: str) -> None:
    assert f"notes: {reason}" in str(predict_row(replace(ROW, mode="open_loop", notes=notes)).skipped)


@pytest.mark.parametrize(
    ("stated", "facts", "layout", "replicas"),
    [
        ({"n_gpus": 8, "tp": 4}, NoteFacts(), Layout(4), 2),
        ({"n_gpus": 8, "tp": 2, "pp": 4}, NoteFacts(), Layout(2, 4), 1),
        # tp counts all ranks of the stage, or the GPUs of one attention rank
        ({"n_gpus": 8, "tp": 8, "ep": 8, "attention_dp": 8}, NoteFacts(), Layout(1, 1, 8, 8), 1),
        ({"n_gpus": 2, "tp": 1, "ep": 2, "attention_dp": 2}, NoteFacts(), Layout(1, 1, 2, 2), 1),
        ({"n_gpus": 4, "tp": 2, "attention_dp": 2}, NoteFacts(), Layout(2, 1, 2, 2), 1),
        # experts over more GPUs than tp has
        ({"n_gpus": 8, "tp": 1, "ep": 8}, NoteFacts(), Layout(1, 1, 8, 8), 1),
        ({"n_gpus": 4, "tp": 4, "ep": 4}, NoteFacts(attention_dp="ranks"), Layout(1, 1, 4, 4), 1),
    ],
)
def test_layouts_fill_the_gpus_that_a_row_states(
    stated: dict[str, int], facts: NoteFacts, layout: Layout, replicas: int
) -> None:
    found, number = layout_of_row(replace(ROW, **stated), facts)
    assert (found, number) == (layout, replicas)
    assert found.gpus * number == stated["n_gpus"]


def test_formats_are_read_in_every_spelling_and_refused_otherwise() -> None:
    assert case_of_row(replace(ROW, weight_precision="awq-int4")).deployed.kernels.plan.weight_format == "int4"
    assert case_of_row(replace(ROW, weight_precision="fp8-dynamic")).deployed.kernels.plan.weight_format == "fp8"
    assert case_of_row(replace(ROW, kv_precision="fp8_e4m3")).deployed.kernels.plan.kv_format == "fp8"
    assert case_of_row(ROW).deployed.kernels.plan.kv_format == "bf16"
    assert "'fp7'" in str(predict_row(replace(ROW, weight_precision="fp7")).skipped)


def test_makers_own_8_bit_checkpoints_imply_an_8_bit_cache() -> None:
    row = replace(ROW, engine="TensorRT-LLM", engine_version="1.0", weight_precision="fp8")
    assert case_of_row(replace(row, model="nvidia/Llama-3.1-8B-Instruct-FP8")).deployed.kernels.plan.kv_format == "fp8"
    assert case_of_row(row).deployed.kernels.plan.kv_format == "bf16"


# --- sizes and counts --------------------------------------------------------------------------------------------


def test_sizes_round_up_in_growing_steps() -> None:
    """Sequences: multiples of 32 below 256, of 128 below 1024, of 256 from there."""
    steps = CONVENTIONS.heuristics[0].sequence_steps
    assert [rounded_up(size, steps) for size in (100.0, 128.0, 300.0, 1030.0, 4096.0)] == [128, 128, 384, 1280, 4096]


def test_the_benchmark_tools_heuristic_sizes_a_saturated_engine() -> None:
    """Llama-3.1-8B BF16 on one H100, 2048 in and 128 out, by hand.

    Weights 8.03e9 x 2 B = 16.06e9 B; 79.19 GiB = 85.03e9 B; cache (85.03 - 16.06)e9 x 0.95 = 65.5e9 B; a token takes
    2 x 32 layers x 8 heads x 128 x 2 B = 131,072 B, a request of 2176 tokens 0.2852e9 B; 65.5/0.2852 = 229.7 sequences
    fit, rounded up to 256; tokens 229.7 x (1 + 2048/128) = 3905, rounded up to 4096.
    """
    row = replace(
        ROW, engine="TensorRT-LLM", engine_version="0.15.0", mode="max_throughput", isl=2048, osl=128, ttft_ms=None
    )
    rules = case_of_row(row).deployed.rules
    assert (rules.slots, rules.budget) == (256, 4096)
    stated = case_of_row(replace(row, max_num_seqs=64, max_num_batched_tokens=2048)).deployed.rules
    assert (stated.slots, stated.budget) == (64, 2048)


@pytest.mark.parametrize(
    ("version", "isl", "osl", "requests"),
    [
        ("0.15.0", 128, 128, 30000),
        ("0.15.0", 2048, 128, 3000),
        ("0.15.0", 1000, 2000, 1500),
        ("0.15.0", 20000, 2000, 1000),
        ("0.10.0", 128, 128, 2000),
    ],
)
def test_saturated_runs_send_as_many_requests_as_their_source_did(
    version: str, isl: int, osl: int, requests: int
) -> None:
    row = replace(ROW, engine="TensorRT-LLM", engine_version=version, mode="max_throughput", isl=isl, osl=osl)
    assert case_of_row(row).traffic.count == requests
    assert case_of_row(replace(row, num_requests=7)).traffic.count == 7


def test_closed_loops_run_as_stated_and_windows_of_a_loop_under_way_hold_more_than_its_first_burst() -> None:
    assert case_of_row(replace(ROW, concurrency=16, num_requests=20)).traffic.count == 20
    assert case_of_row(replace(ROW, concurrency=16, num_requests=20, source="DLI (nim.csv)")).traffic.count == 48
    assert case_of_row(replace(ROW, concurrency=16, num_requests=100)).traffic.count == 100
    assert case_of_row(replace(ROW, concurrency=16)).traffic.count == 160


def test_run_settings_of_the_row_reach_the_scheduler() -> None:
    row = replace(
        ROW,
        max_num_seqs=8,
        max_num_batched_tokens=4096,
        batch_wait_steps=20,
        batch_wait_ratio=0.9,
        arrival_poll_steps=30,
        length_ratio_min=0.8,
    )
    case = case_of_row(row)
    rules, traffic = case.deployed.rules, case.traffic
    assert (rules.slots, rules.budget) == (8, 4096)
    assert (rules.hold_steps, rules.hold_ratio, rules.poll_steps) == (20, 0.9, 30)
    assert (traffic.isl.shape, traffic.isl.low_share, traffic.isl.mean) == ("uniform", 0.8, 1000)


# --- predictions -------------------------------------------------------------------------------------------------


def test_one_request_in_flight_takes_its_prefill_and_its_steps() -> None:
    """Alone, E2E = TTFT + ITL x (OSL - 1), and requests/s is its inverse."""
    found = predict(case_of_row(ROW)).values
    assert found["e2e_ms"] == pytest.approx(found["ttft_ms"] + 99 * found["itl_ms"], rel=1e-9)
    assert found["req_per_s"] == pytest.approx(1000 / found["e2e_ms"], rel=1e-9)
    assert found["output_tok_per_s"] == pytest.approx(100 * found["req_per_s"], rel=1e-9)


def test_a_static_batch_is_prefilled_whole_before_it_decodes() -> None:
    row = replace(ROW, engine="TensorRT-LLM", engine_version="0.9.0", mode="static_batch", batch=16)
    one = predict(case_of_row(replace(row, batch=1))).values
    many = predict(case_of_row(row)).values
    assert many["e2e_ms"] == pytest.approx(many["ttft_ms"] + 99 * many["itl_ms"], rel=1e-9)
    assert many["output_tok_per_s"] == pytest.approx(16 * 100 / (many["e2e_ms"] / 1000), rel=1e-9)
    # Sixteen prompts of 1000 tokens are compute-bound: nearly sixteen times one; a step with 16 is memory-bound.
    assert 12 < many["ttft_ms"] / one["ttft_ms"] <= 16
    assert many["itl_ms"] < 2 * one["itl_ms"]


def test_an_infinite_rate_is_all_at_once() -> None:
    row = replace(ROW, mode="open_loop", concurrency=None, num_requests=50, notes="rate=inf")
    at_once = predict(case_of_row(replace(row, mode="max_throughput"))).values
    assert predict(case_of_row(row)).values == at_once
    slow = predict(case_of_row(replace(row, notes="rate=0.05"))).values
    # One request in 20 s finds the engine empty but for a chance in 25: an E2E of 0.8 s against a gap of 20 s.
    assert slow["ttft_ms"] == pytest.approx(predict(case_of_row(ROW)).values["ttft_ms"], rel=0.1)
    assert slow["ttft_ms"] < at_once["ttft_ms"]


def test_replicas_share_the_concurrency() -> None:
    one = predict(case_of_row(replace(ROW, concurrency=8))).values
    two = predict(case_of_row(replace(ROW, concurrency=16, n_gpus=2))).values
    assert two["itl_ms"] == pytest.approx(one["itl_ms"], rel=1e-9)
    assert two["req_per_s"] == pytest.approx(2 * one["req_per_s"], rel=1e-9)


def test_fewer_requests_than_replicas_leave_some_idle() -> None:
    """Three requests on eight replicas: each is served as if alone, at three times its rate."""
    alone = predict(case_of_row(ROW)).values
    three = predict(case_of_row(replace(ROW, concurrency=3, n_gpus=8))).values
    assert three["req_per_s"] == pytest.approx(3 * alone["req_per_s"], rel=1e-9)


def test_another_definition_of_itl_is_converted() -> None:
    plain = predict(case_of_row(ROW)).values
    counted = predict(case_of_row(replace(ROW, notes="its inter-token latency includes the first token"))).values
    assert counted["itl_ms"] == pytest.approx(plain["e2e_ms"] / 100, rel=1e-9)
    gaps = predict(case_of_row(replace(ROW, notes="TTFT/ITL means"))).values  # over all tokens, of equal outputs
    assert gaps["itl_ms"] == pytest.approx(plain["itl_ms"], rel=1e-9)


def test_what_does_not_fit_is_a_miss_and_not_skipped() -> None:
    result = predict_row(replace(ROW, model="meta-llama/Llama-3.1-70B", gpu="A100-SXM-40GB"))
    assert result.skipped is None and result.prediction is not None
    assert "does not fit" in str(result.prediction.missed)
    assert {one.error for one in compare([result], ())} == {-1.0}  # predicted 0: wrong by all of it


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"engine": "TGI"}, "'TGI' is not modelled: this engine"),
        ({"engine": "vlm"}, "unknown engine 'vlm'"),
        ({"model": "no/such-model"}, "unknown model"),
        ({"gpu": "abacus"}, "unknown GPU"),
        ({"notes": "prefill-decode disaggregated 1P1D"}, "separate GPUs"),
        ({"concurrency": None}, "concurrency"),
        ({"mode": "open_loop"}, "rate"),
        ({"mode": "static_batch"}, "batch"),
        ({"tp": 3, "n_gpus": 3}, "3"),
        (
            {"tp": 2, "n_gpus": 3},
            "n_gpus: 3 GPUs are no whole number of replicas of tp 2 x pp 1; allowed: a multiple of 2",
        ),
        ({"tp": 2, "pp": 2, "n_gpus": 6}, "no whole number of replicas of tp 2 x pp 2; allowed: a multiple of 4"),
        ({"tp": 4, "n_gpus": 2}, "allowed: a multiple of 4"),
        ({"tp": 4, "n_gpus": 4, "ep": 3}, "ep: 3 does not divide the 4 GPUs of a stage"),
        ({"tp": 2, "n_gpus": 4, "attention_dp": 8}, "attention_dp: 8 ranks are more than the GPUs hold, 4"),
        ({"osl": 1}, "itl_ms: there is none within outputs of 1 tokens"),
        # Llama 3.1 has 131,072 positions, four times as many are 524,288.
        (
            {"isl": 524_200},
            "isl, osl: 524,300 tokens (ISL + OSL) exceed the 131,072 positions of meta-llama/Llama-3.1-8B; "
            "allowed: at most 524,288",
        ),
    ],
)
def test_what_cannot_be_predicted_has_a_reason(changed: dict[str, object], reason: str) -> None:
    result = predict_row(replace(ROW, **changed))  # type: ignore[arg-type]
    assert result.prediction is None
    assert reason in str(result.skipped)


def test_requests_beyond_the_positions_are_predicted_as_with_scaled_ones() -> None:
    """GPT-J has 2,048 positions and was timed up to 5,500; attention goes on growing with the prompt."""
    row = replace(
        ROW, model="EleutherAI/gpt-j-6b", engine="TensorRT-LLM", engine_version="0.9.0", mode="static_batch", batch=1
    )
    assert case_of_row(replace(row, isl=1948)).notes == ()
    case = case_of_row(replace(row, isl=1949))
    assert case.notes == ("requests beyond the 2,048 positions of EleutherAI/gpt-j-6b: scaled",)
    assert case.deployed.shard.model.max_position == 2049
    half, whole = (predict(case_of_row(replace(row, isl=isl))).values["ttft_ms"] for isl in (4000, 8000))
    assert whole > 2 * half  # twice the tokens through the matrices, four times the attention
    assert predict_row(replace(row, isl=8093)).skipped is not None  # 8,193 tokens; 4 x 2,048 = 8,192


def test_processes_do_not_change_results_or_their_order() -> None:
    rows = load_measured(SAMPLE) * 3  # more than one chunk
    alone, together = predict_rows(rows), predict_rows(rows, each=partial(ordered, jobs=2))
    assert [result.row.id for result in together] == [row.id for row in rows]
    assert [result.prediction for result in together] == [result.prediction for result in alone]


# --- errors ------------------------------------------------------------------------------------------------------


def comparison(measured: float, predicted: float, low: float | None = None, high: float | None = None) -> Comparison:
    return Comparison(0, "a", "itl_ms", measured, predicted, low, high, ("x",), predicted / 2)


def test_statistics_by_hand() -> None:
    """Errors +10 %, -20 %, +30 %: |error| 10, 20, 30; the 90th percentile lies at 0.9 x 2 = 1.8 steps: 20 + 0.8 x 10."""
    found = statistics([comparison(100, 110), comparison(100, 80), comparison(100, 130)])
    assert (found.n, found.band_coverage) == (3, None)
    assert found.median_ape == pytest.approx(0.20)
    assert found.p90_ape == pytest.approx(0.28)
    assert found.bias == pytest.approx(0.10)
    assert (found.corrected_median_ape, found.corrected_bias) == pytest.approx(
        (0.45, -0.45)
    )  # half of what is predicted


def test_coverage_counts_measurements_inside_their_band() -> None:
    inside, outside = comparison(100, 110, 90, 130), comparison(100, 200, 150, 250)
    assert statistics([inside, inside, inside, outside]).band_coverage == 0.75
    assert statistics([inside, comparison(100, 110)]).band_coverage == 1.0  # rows without a band don't count


@pytest.mark.parametrize(
    ("in_flight", "name"), [(1, "solo"), (2, "low"), (8, "low"), (9, "medium"), (64, "medium"), (65, "high")]
)
def test_load_regions(in_flight: float, name: str) -> None:
    assert region(in_flight) == name


def test_groups_part_the_rows() -> None:
    results = predict_rows(load_measured(SAMPLE))
    by = ("engine", "kind", "load")
    compared = compare(results, by)
    found = groups(compared, by)
    assert sum(group.rows for group in found) == sum(result.prediction is not None for result in results)
    assert sum(figures.n for group in found for figures in group.metrics.values()) == len(compared)
    assert {group.by["engine"] for group in found} == {"vllm", "tensorrt-llm"}  # names of the catalogue
    assert {group.by["kind"] for group in found} == {"dense", "moe"}


def test_a_corrected_prediction_stands_beside_the_model_s_own() -> None:
    """Steps that take twice as long double every latency of a closed loop and halve its rate."""
    twice = Corrections(corrections=(Correction(mode="served", decode=2.0, prefill=2.0, groups=3),), source="a test", date="2026-01-01")  # fmt: skip
    rows = [row for row in load_measured(SAMPLE) if row.mode in ("closed_loop", "static_batch")]
    plain, both = predict_rows(rows), predict_rows(rows, twice)
    for bare, one in zip(plain, both, strict=True):
        if bare.prediction is None or one.prediction is None:
            continue
        assert one.prediction.values == bare.prediction.values
        if one.row.mode == "static_batch" or one.prediction.missed:
            assert one.prediction.corrected is None
            continue
        assert one.prediction.corrected is not None
        for name, value in one.prediction.corrected.items():
            factor = 0.5 if name.endswith("_per_s") else 2.0
            assert value == pytest.approx(factor * bare.prediction.values[name], rel=1e-6)


def test_rows_of_one_id_are_counted_apart() -> None:
    results = predict_rows(load_measured(SAMPLE)[:1] * 3)
    (group,) = groups(compare(results, ("engine",)), ("engine",))
    assert group.rows == 3


def test_groups_by_metric_hold_one_metric_each() -> None:
    results = predict_rows(load_measured(SAMPLE)[:2])
    compared = compare(results, ("metric",))
    found = groups(compared, ("metric",))
    assert [set(group.metrics) for group in found] == [{group.by["metric"]} for group in found]
    assert sum(figures.n for group in found for figures in group.metrics.values()) == len(compared)


def test_an_unknown_column_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean engine"):
        check_columns(("engin",))
    assert check_columns(("rack", "gpu"), known=("rack",)) == ("rack", "gpu")
    with pytest.raises(InputError, match="--by: names no column; allowed: load, kind, metric"):
        check_columns(())


def test_doubts_of_a_row_are_told_and_a_gpu_without_measured_kernels_is_none() -> None:
    rules = (
        NotFitted(notes="suspect:", why="disagrees"),
        NotFitted(source="docs", figures=("ttft_ms",), why="kernels were compiled"),
        NotFitted(gpu="H100", why="no kernel was measured"),
    )
    assert doubts(ROW, rules) == ()
    assert doubts(replace(ROW, notes="suspect: odd", source="its docs"), rules) == (
        "disagrees",
        "ttft_ms: kernels were compiled",
    )


def test_a_doubtful_row_is_predicted_and_its_reason_is_shown() -> None:
    results = predict_rows([replace(ROW, notes="suspect: odd"), ROW])
    report, compared = validate.record(results, ["rows.csv"], ["mode"])
    (doubtful,) = report.doubtful
    assert (doubtful.id, report.predicted) == (ROW.id, 2) and {one.row for one in compared} == {0, 1}
    screen = " ".join(render_for(validate.document(report), StringIO()).split())
    assert f"Doubtful 1 row: {doubtful.reason} (a)" in screen


CAPPED = "; arrivals capped at 16 in flight by the client: others waited there, which TTFT leaves out"


def test_a_rate_above_capacity_under_a_cap_is_a_closed_loop_of_it() -> None:
    """All 16 clients are busy, as 16 requests x 0.83 s x 19 requests/s show."""
    closed = replace(ROW, concurrency=16, num_requests=160, req_per_s=19.0, output_tok_per_s=1900.0)
    capped = case_of_row(replace(closed, mode="open_loop", notes=f"rate=40{CAPPED}"))
    assert (capped.traffic, capped.row.mode) == (case_of_row(closed).traffic, "closed_loop")
    assert "40 requests/s are above capacity: a closed loop of the 16" in capped.notes[0]
    for lighter in ({"notes": f"rate=20{CAPPED}"}, {"req_per_s": 4.0}):  # the rate was served; most clients were idle
        with pytest.raises(InputError, match="the client capped requests in flight"):
            case_of_row(replace(capped.row, mode="open_loop", **lighter))
