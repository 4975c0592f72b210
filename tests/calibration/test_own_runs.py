"""Own runs: their factors are found again, refused where nothing tells them, and used by every command through a profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

import sizing
from sizing.answers.estimate import estimate
from sizing.calibration.measured_runs import MeasuredRuns, impossible
from sizing.calibration.own_runs import FACTORS, CalibratedProfile, FactorFit, calibrate, fit, profile, told
from sizing.catalog.measured import MeasuredRow
from sizing.catalog.profiles import load_gpu
from sizing.catalog.runs import published, students
from sizing.catalog.shelf import only
from sizing.engine.batch import DecodeBatch
from sizing.engine.deployment import step_clock, windows_of
from sizing.evidence.predict import Result, predict, predict_rows, situation_of
from sizing.evidence.rows import case_of_row
from sizing.replica.step import Batch, step
from sizing.report.parts.evidence import Predicted, bounds
from sizing.specs.bands import Corrections, Situation, of_own
from sizing.specs.calibration import Calibration
from sizing.specs.engine_time import OwnRuns
from sizing.specs.errors import InputError

# Runs of the simulator on a machine of its own: three at one length and two at another, of one layout; others of other lengths,
# loads and a second layout. What is measured is simulated anew, so that no test depends on constants of now.
MACHINE = OwnRuns(
    engine="vllm", engine_version="0.19.0", compute=0.8, bandwidth=0.9, step_us=400.0, sequence_us=15.0, points=1, settings="x",
    source="x", date="x",
)  # fmt: skip
POINTS = ((1, 1000, 200, 1), (1, 1000, 200, 16), (1, 1000, 200, 64), (1, 6000, 200, 2), (1, 6000, 200, 16))
OTHERS = ((1, 2000, 400, 4), (1, 2000, 400, 32), (2, 1000, 200, 32), (2, 6000, 200, 8))


def asked(*shapes: tuple[int, int, int, int]) -> tuple[MeasuredRow, ...]:
    """Rows of (tp, ISL, OSL, in flight), nothing of which is measured yet."""
    return tuple(
        MeasuredRow(
            id=f"p{number}", engine="vllm", engine_version="0.19.0", model="llama-3.1-8b", gpu="h100-sxm", isl=isl, osl=osl,
            mode="closed_loop", tp=tp, n_gpus=tp, weight_precision="bf16", concurrency=in_flight, num_requests=6 * in_flight,
            length_ratio_min=0.8, ttft_ms=1.0, itl_ms=1.0, req_per_s=1.0,
        )
        for number, (tp, isl, osl, in_flight) in enumerate(shapes)
    )  # fmt: skip


@cache
def runs_of(*shapes: tuple[int, int, int, int]) -> tuple[MeasuredRow, ...]:
    """Rows of (tp, ISL, OSL, in flight) as the machine serves them."""
    rows = []
    for row in asked(*shapes):
        case = case_of_row(row)
        gpu = case.replica.gpu_type.gpu.model_copy(update={"own_runs": MACHINE})
        deployed = replace(case.deployed, kernels=replace(case.deployed.kernels, gpu=gpu))
        rows.append(replace(row, **predict(replace(case, deployed=deployed)).values))
    return tuple(rows)


@pytest.fixture(scope="module")
def found() -> CalibratedProfile:
    return calibrate(runs_of(*POINTS), load_gpu("h100-sxm"), "vllm", "own_points.csv")


def measured(rows: Sequence[MeasuredRow]) -> MeasuredRuns:
    return MeasuredRuns([case_of_row(row) for row in rows], load_gpu("h100-sxm").spec, only(Calibration).own_runs)


@pytest.fixture(scope="module")
def plain() -> FactorFit:
    return fit(measured(runs_of(*POINTS)))


@pytest.fixture(scope="module")
def mine(found: CalibratedProfile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "mine.yaml"
    path.write_text(profile(found, load_gpu("h100-sxm")), encoding="utf-8")
    return path


def errors(results: tuple[Result, ...], metric: str) -> float:
    off = [r.prediction.values[metric] / r.row.measured()[metric] - 1 for r in results if r.prediction is not None]
    assert len(off) == len(results)
    return float(np.median(np.abs(off)))


def test_five_points_of_one_layout_explain_other_lengths_loads_and_layouts(mine: Path) -> None:
    rows = runs_of(*OTHERS)
    before, after = predict_rows(rows), predict_rows(rows, gpu=load_gpu(str(mine)))
    for metric, most in (("ttft_ms", 0.06), ("itl_ms", 0.03), ("req_per_s", 0.03)):
        assert errors(after, metric) < most
        assert errors(after, metric) < errors(before, metric) / 2


def test_compute_is_found_again_within_its_range(found: CalibratedProfile) -> None:
    ranges = {one.factor: one for one in found.own.ranges}
    assert set(ranges) == set(FACTORS)
    for name in FACTORS:
        assert ranges[name].low < getattr(MACHINE, name) < ranges[name].high
        assert ranges[name].low < getattr(found.own, name) < ranges[name].high


def test_a_factor_that_runs_hardly_tell_keeps_most_of_its_range(found: CalibratedProfile) -> None:
    rules = only(Calibration).own_runs
    ranges = {one.factor: one for one in found.own.ranges}
    assert "step_us" in found.untold and "compute" not in found.untold
    wide = ranges["step_us"].high - ranges["step_us"].low
    assert wide > rules.most_left * rules.spread["step_us"]  # of 2.6 spreads before any run


def test_two_runs_of_another_tp_tell_the_host_from_the_bandwidth() -> None:
    """At one TP a light step is the sum of both; the weights of a GPU shrink with TP, and the host's time does not."""
    rules, gpu = only(Calibration).own_runs, load_gpu("h100-sxm").spec
    of_four = ((4, 1000, 500, 1), (4, 1000, 500, 64))
    for shapes, known in ((POINTS, {0, 1, 3}), ((POINTS[0], POINTS[2], POINTS[3], *of_four), {0, 1, 2, 3})):
        runs = MeasuredRuns([case_of_row(row) for row in asked(*shapes)], gpu, rules)
        assert set(told(runs.slopes(np.zeros(4)) * runs.weight[:, np.newaxis], rules)) == known


@pytest.mark.parametrize("metric", ["ttft_ms", "itl_ms", "req_per_s"])
def test_runs_of_one_setting_that_contradict_each_other_are_refused(metric: str) -> None:
    rows = list(runs_of(*POINTS))
    again = replace(rows[1], id="again", **{metric: 1.5 * getattr(rows[1], metric)})
    assert f"p1 and again ran the same, and their {metric} is" in refused([*rows, again])


def test_runs_that_repeat_each_other_or_differ_in_their_setting_are_kept() -> None:
    rows = list(runs_of(*POINTS))
    ttft_ms, itl_ms = rows[1].ttft_ms or 0.0, rows[1].itl_ms or 0.0
    repeated = replace(rows[1], id="again", ttft_ms=1.02 * ttft_ms, itl_ms=1.02 * itl_ms)
    other_count = replace(rows[1], id="other", num_requests=20, ttft_ms=1.5 * ttft_ms)
    assert calibrate([*rows, repeated, other_count], load_gpu("h100-sxm"), None, "x").own.points == 7


def test_confidence_on_the_profile_is_that_of_its_runs(mine: Path, found: CalibratedProfile) -> None:
    question = sizing.ask(
        None, model="llama-3.1-8b", gpu=str(mine), isl=1000, osl=500, rps=100, ttft="400ms", confidence="90%"
    )
    bold = question.with_(confidence=None)
    sure, expected = (estimate(each, simulated=False) for each in (question, bold))
    assert sure.best is not None and expected.best is not None and expected.by_runs.odds is not None
    assert expected.by_runs.odds.own and expected.by_runs.odds.groups == 5
    assert expected.by_runs.odds.gpus == sure.best.gpus >= expected.best.gpus
    situation = question.service.situation(load_gpu(str(mine)).spec)
    alike = published().like(situation, ("throughput", "ttft"))
    assert alike is not None
    for name in ("throughput", "ttft"):  # nine in ten are no slower than the upper end of the band of 8 in 10
        band = next(band for band in found.own.bands if band.metric == name)
        slowest = 1 / band.low if name == "throughput" else band.high
        assert np.quantile(alike.of(name), 0.9) == pytest.approx(slowest, rel=0.005)


def test_two_runs_say_nothing_of_confidence(found: CalibratedProfile) -> None:
    few = tuple(band.model_copy(update={"n": 2}) for band in found.own.bands)
    own = of_own(found.own.model_copy(update={"bands": few}))
    situation = Situation("served", "NVIDIA", "vllm", "hopper", "dense", None, own=own)
    assert published().like(situation, ("throughput",)) is None


@pytest.mark.parametrize("freedom", [2, 4, 20])
def test_quantiles_are_students(freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")  # which is slow to load
    share = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(students(share, freedom), stats.t.ppf(share, freedom), rtol=0.03, atol=1e-7)


def test_bands_hold_the_runs_and_are_no_narrower_than_a_measurement_repeats(found: CalibratedProfile) -> None:
    rules = only(Calibration).own_runs
    assert {band.metric for band in found.own.bands} == {"ttft", "itl", "e2e", "throughput"}
    for band in found.own.bands:
        assert band.low * band.high == pytest.approx(1.0, rel=1e-3)
        assert band.high >= math.exp(rules.error[band.metric])


def test_runs_like_the_base_profile_leave_it(found: CalibratedProfile) -> None:
    runs = measured(runs_of(*POINTS))
    base = np.exp(runs.simulated(np.zeros(4)))
    values = iter(base)
    rows = [
        replace(case.row, **{name: float(next(values)) for name in found_})
        for case, found_ in zip(runs.cases, runs.metrics, strict=True)
    ]
    again = calibrate(rows, load_gpu("h100-sxm"), None, "themselves")
    own = again.own
    assert (own.compute, own.bandwidth) == pytest.approx((1.0, 1.0), abs=1e-3)
    assert abs(own.step_us) < 1 and abs(own.sequence_us) < 0.1


def test_what_no_factor_explains_is_scatter_and_bends_nothing_else(plain: FactorFit) -> None:
    """TTFT that is half as long again, or half as long, in turn: gaps of other lengths, loads and layouts stay as well known."""
    rows = [
        replace(row, ttft_ms=(row.ttft_ms or 0.0) * (1.5 if number % 2 else 0.5))
        for number, row in enumerate(runs_of(*POINTS))
    ]
    disturbed, others = fit(measured(rows)), measured(runs_of(*OTHERS))
    gaps = np.array([name == "itl_ms" for name in others.names])
    off = np.abs(np.expm1(others.simulated(disturbed.at) - others.measured))[gaps]
    assert np.median(off) < 0.05
    assert np.all(disturbed.sigma >= plain.sigma * (1 - 1e-6))  # and it is known less well


def test_a_repeated_run_is_left_out_with_its_twin() -> None:
    """A run whose TTFT is a third longer than the others let expect is as far off again where it is measured twice."""
    rows = list(runs_of(*POINTS))
    rows[2] = replace(rows[2], ttft_ms=1.3 * (rows[2].ttft_ms or 0.0))
    once, twice = (fit(measured(of)) for of in (rows, [*rows, replace(rows[2], id="again")]))
    left = 3 * 2  # the first metric of the third run, of three a run
    errors = [np.log(rows[2].ttft_ms or 1.0) - each.left_out[left] for each in (once, twice)]
    assert errors == pytest.approx([np.log(1.3)] * 2, rel=0.03)


def test_a_row_that_stands_twice_counts_once(found: CalibratedProfile) -> None:
    """A file that is named twice must not make the factors look better known; nor may a row that cannot be fitted."""
    rows = runs_of(*POINTS)
    other = replace(rows[0], id="other", gpu="h200-sxm")
    twice = calibrate([*rows, *rows, other], load_gpu("h100-sxm"), None, "own_points.csv")
    assert (twice.own.points, twice.own.ranges) == (len(rows), found.own.ranges)
    *again, aside = twice.aside
    assert [one.reason for one in again] == ["stands twice, and counts once"] * len(rows)
    assert aside.id == "other"
    unstated = [replace(row, engine_version="") for row in rows[:2]]
    assert any("states no version" in note for note in calibrate(unstated, load_gpu("h100-sxm"), None, "x").taken)


def slower(factor: float, points: tuple[tuple[int, int, int, int], ...]) -> list[MeasuredRow]:
    """The runs of a machine that takes `factor` times as long for everything."""
    return [
        replace(
            row,
            ttft_ms=factor * (row.ttft_ms or 0.0),
            itl_ms=factor * (row.itl_ms or 0.0),
            req_per_s=(row.req_per_s or 0.0) / factor,
        )
        for row in runs_of(*points)
    ]


def test_a_machine_far_from_the_base_profile_is_told(found: CalibratedProfile) -> None:
    assert found.far == ()
    assert calibrate(slower(3, POINTS), load_gpu("h100-sxm"), None, "x").far


@pytest.mark.parametrize("factor", [10, 1000])
def test_runs_that_no_factor_explains_are_refused_with_how_far_they_are_off(factor: float) -> None:
    says = refused(slower(factor, POINTS[:2]))
    assert "itl_ms: is predicted" in says and "off the runs (median) with the best factors of H100 SXM 80GB" in says


def test_factors_that_nothing_tells_are_held() -> None:
    rules = only(Calibration).own_runs
    one = np.zeros((3, 4))
    assert told(one, rules) == ()
    one[:, 1] = 5.0  # only bandwidth changes anything
    assert told(one, rules) == (1,)
    one[:, 2] = 5.0  # and the step as much: neither is known, until one is held
    assert len(told(one, rules)) == 1


def refused(rows: list[MeasuredRow], gpu: str = "h100-sxm", engine: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        calibrate(rows, load_gpu(gpu), engine, "x")
    return str(caught.value)


@pytest.mark.parametrize(("metric", "factor"), [("itl_ms", 0.1), ("ttft_ms", 0.1), ("req_per_s", 1e3)])
def test_a_run_beyond_the_datasheet_is_refused_with_both_figures(metric: str, factor: float) -> None:
    rows = list(runs_of(*POINTS))
    value = factor * getattr(rows[0], metric)
    says = refused([replace(rows[0], **{metric: value}), *rows[1:]])
    assert f"{metric}: row p0: {value:,.3g}"[:20] in says and "at the datasheet's peak" in says


def test_the_least_time_of_a_token_is_that_of_reading_the_weights() -> None:
    """8.03 B parameters without the table of embeddings (0.53 B) in 16 bit, and 800 tokens of cache: 15.1 GB at 3.35 TB/s."""
    row = replace(runs_of(*POINTS)[0], itl_ms=0.75)
    (fault,) = impossible(case_of_row(row))
    assert fault.field == "itl_ms" and "0.75 ms" in fault.message and "4.52 ms" in fault.message
    assert not list(impossible(case_of_row(replace(row, itl_ms=4.6))))


def test_what_runs_cannot_tell_is_refused(mine: Path) -> None:
    rows = list(runs_of(*POINTS))
    assert "one load and one length" in refused([rows[1], replace(rows[1], id="again")])
    assert "not H200" in refused(rows, "h200-sxm")
    assert "no row can be fitted: a run of vllm" in refused(rows, engine="sglang")
    assert "vllm:0.18.0, vllm:0.19.0" in refused([rows[0], replace(rows[1], engine_version="0.18.0")])
    assert "has own runs already; allowed: h100-sxm" in refused(rows, str(mine))


def test_answers_on_the_profile_have_its_engine_bands_and_no_published_correction(
    mine: Path, found: CalibratedProfile
) -> None:
    question = sizing.ask(None, model="llama-3.1-8b", gpu=str(mine), isl=1000, osl=500, rps=5)
    assert (question.service.engine.name, question.service.engine_version) == ("vllm", "0.19.0")
    best = estimate(question, simulated=False).best
    assert best is not None
    kernels = best.pool.timed.kernels
    assert (kernels.correction.decode, kernels.correction.prefill) == (1.0, 1.0)
    situation = question.service.situation(kernels.gpu)
    assert only(Corrections).of(situation).decode == 1.0
    band = next(band for band in found.own.bands if band.metric == "itl")
    assert bounds([Predicted("x", 10.0, "itl", situation)])["x"].high == pytest.approx(10 * band.high, rel=1e-3)


def test_another_engine_than_that_of_the_runs_is_refused(mine: Path) -> None:
    with pytest.raises(InputError, match="sglang was not run on"):
        sizing.ask(None, model="llama-3.1-8b", gpu=str(mine), isl=1000, osl=500, rps=5, engine="sglang")


@pytest.mark.parametrize(("base", "says"), [("h1000", "unknown GPU"), ("./nothing.yaml", "not found")])
def test_a_profile_of_an_unknown_base_is_told_by_line(mine: Path, tmp_path: Path, base: str, says: str) -> None:
    stated = yaml.safe_load(mine.read_text(encoding="utf-8")) | {"extends": base}
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(stated, sort_keys=False), encoding="utf-8")
    with pytest.raises(InputError, match=says):
        load_gpu(str(path))


def test_a_profile_that_extends_itself_is_refused(mine: Path, tmp_path: Path) -> None:
    path = tmp_path / "itself.yaml"
    stated = yaml.safe_load(mine.read_text(encoding="utf-8")) | {"extends": str(path)}
    path.write_text(yaml.safe_dump(stated, sort_keys=False), encoding="utf-8")
    with pytest.raises(InputError, match="has own runs itself"):
        load_gpu(str(path))


def test_rows_of_another_gpu_are_skipped_with_the_reason(mine: Path) -> None:
    row = replace(runs_of(*OTHERS)[0], gpu="H200-SXM-141GB")
    (result,) = predict_rows([row], gpu=load_gpu(str(mine)))
    assert result.skipped is not None and "is not H100" in result.skipped


@pytest.mark.parametrize("engine", ["vllm:0.19.0", "vllm:0.7.0"])  # whose host is hidden under the GPU, and not
@pytest.mark.parametrize("step_us", [300.0, -200.0, -1e5])
def test_the_simulators_clock_and_the_exact_step_add_the_same(engine: str, step_us: float) -> None:
    name, version = engine.split(":")
    row = replace(runs_of(*POINTS)[1], engine=name, engine_version=version)
    case = case_of_row(row)
    own = OwnRuns(
        engine=name,
        engine_version=version,
        step_us=step_us,
        sequence_us=5.0,
        points=1,
        settings="x",
        source="x",
        date="x",
    )
    gpu = case.replica.gpu_type.gpu.model_copy(update={"own_runs": own})
    kernels = replace(case.deployed.kernels, gpu=gpu)
    clock = step_clock(kernels, most_tokens=64, most_rows=64)
    batch = DecodeBatch(windows_of(kernels.shard.model))
    for number in range(16):
        batch.join(number, 1000.0, 100)
    exact = step(kernels, Batch(decode_sequences=16.0, decode_context_tokens=1000.0)).total_s
    assert clock.series(batch).time(1) == pytest.approx(exact, rel=0.02)
    assert exact > 0


def test_the_file_is_what_was_fitted(mine: Path, found: CalibratedProfile) -> None:
    gpu = load_gpu(str(mine))
    own = gpu.spec.own_runs
    assert own is not None and gpu.spec.extends == "h100-sxm"
    assert (own.compute, own.bandwidth, own.step_us, own.sequence_us) == tuple(
        getattr(found.own, name) for name in FACTORS
    )
    assert own.closed_loop and own.source == "own_points.csv" and own.engine_version == "0.19.0" and own.date
    base = load_gpu("h100-sxm").spec
    # Measured kernels are found by the GPU's name, which stays.
    assert (gpu.spec.datasheet, gpu.spec.name) == (base.datasheet, base.name)


def test_situations_of_rows_carry_the_bands_of_their_profile(mine: Path) -> None:
    (result,) = predict_rows(runs_of(*OTHERS)[:1], gpu=load_gpu(str(mine)))
    assert situation_of(result).own
