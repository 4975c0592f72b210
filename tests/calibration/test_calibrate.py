"""Calibration: what a fit finds, what it leaves alone, and how profiles and bands are written."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from sizing.calibration import fit
from sizing.calibration.bands import Ratio, bands_of, tail_of
from sizing.calibration.fit import Constant
from sizing.calibration.refit import NewRow, engine_rewritten
from sizing.catalog import shelf
from sizing.catalog.measured import MeasuredRow
from sizing.evidence.notes import known_of
from sizing.specs.calibration import BandRules, Calibration, Fitted, NotFitted

pytest.importorskip("scipy")

HOST = Constant("vllm", "host", 0, "per_step_us")
FRONT = Constant("vllm", "front_end", 0, "per_request_ms")


def calibration(**changes: float) -> Calibration:
    return shelf.only(Calibration).model_copy(update=changes)


def rule(constant: Constant, most: float = 1000.0) -> Fitted:
    return Fitted(
        setting=constant.setting, field=constant.field, least=0.0, most=most, step=1.0, prior=0.0, scale=100.0
    )  # type: ignore[arg-type]


def problem(rng: np.random.Generator, truth: tuple[float, float], noise: float = 0.0, n: int = 400) -> fit.Problem:
    """Errors as they are where the constants are `truth` and stand at (100, 100); folds 0 to 3 in turn."""
    slope = rng.uniform(0, 1e-3, (n, 2))
    error = slope @ (np.array([100.0, 100.0]) - np.array(truth)) + rng.normal(0, noise, n)
    return fit.Problem((HOST, FRONT), np.array([100.0, 100.0]), error, slope, np.ones(n), np.arange(n) % 4)


def test_the_constants_that_made_the_errors_are_found() -> None:
    found = fit.solve(problem(np.random.default_rng(0), (250.0, 40.0)), {HOST: rule(HOST), FRONT: rule(FRONT)}, calibration(prior_weight=0.0))  # fmt: skip
    assert found == pytest.approx([250.0, 40.0], rel=1e-3)


def test_a_few_rows_that_are_all_wrong_do_not_move_it() -> None:
    """One row in ten is off by a factor of e: squared errors would move by some hundred us."""
    asked = problem(np.random.default_rng(1), (250.0, 40.0), noise=0.005)
    asked.error[::10] += 1.0
    found = fit.solve(asked, {HOST: rule(HOST), FRONT: rule(FRONT)}, calibration(prior_weight=0.0))
    assert found == pytest.approx([250.0, 40.0], abs=20.0)


@pytest.mark.parametrize(("truth", "place", "bound"), [((250.0, 40.0), 0, 200.0), ((150.0, -80.0), 1, 0.0)])
def test_constants_keep_their_bounds(truth: tuple[float, float], place: int, bound: float) -> None:
    rules = {HOST: rule(HOST, 200.0), FRONT: rule(FRONT)}
    found = fit.solve(problem(np.random.default_rng(0), truth), rules, calibration(prior_weight=0.0))
    assert found[place] == pytest.approx(bound, abs=0.5)


def test_a_fold_left_out_has_no_say() -> None:
    asked = problem(np.random.default_rng(2), (250.0, 40.0))
    rules = {HOST: rule(HOST), FRONT: rule(FRONT)}
    untouched = fit.solve(asked, rules, calibration(), without=3)
    asked.error[asked.fold == 3] = 5.0
    assert fit.solve(asked, rules, calibration(), without=3) == pytest.approx(untouched)
    assert fit.solve(asked, rules, calibration()) != pytest.approx(untouched, rel=1e-6)


def test_without_rows_that_say_anything_the_prior_stands() -> None:
    silent = problem(np.random.default_rng(0), (250.0, 40.0))._replace(slope=np.zeros((400, 2)))
    assert fit.solve(silent, {HOST: rule(HOST), FRONT: rule(FRONT)}, calibration()) == pytest.approx([0.0, 0.0], abs=0.5)  # fmt: skip


def test_a_group_counts_as_the_root_of_its_rows() -> None:
    """16 rows of one source weigh 16 * 16**-0.5 = 4 (of squares) against 1 of a single row."""
    weight = fit.weights(["many"] * 16 + ["one"])
    assert (weight[:16] ** 2).sum() == pytest.approx(4.0)
    assert weight[16] == 1.0


def test_groups_keep_their_fold() -> None:
    assert [fit.fold_of(name, 5) for name in ("a", "b", "a")] == [fit.fold_of("a", 5), fit.fold_of("b", 5), fit.fold_of("a", 5)]  # fmt: skip
    assert {fit.fold_of(str(number), 5) for number in range(100)} == set(range(5))


PROFILE = """name: some
settings:
  host:
    - {since: "0.1", until: "0.9", when: {min_pp: 2}, value: {per_step_us: 10, overlapped: true}, evidence: assumed,
       source: "x"}
    - {since: "1.0", value: {per_step_us: 20, overlapped: false}, evidence: assumed, source: "y"}  # kept

  front_end:
    - {since: "0.1", value: {per_request_ms: 1}, evidence: assumed, source: "z"}
"""
NEW = NewRow({"per_step_us": 123.456, "per_sequence_us": 1e-20}, 42, 0.0512, 'rows of "a: b"', "fitted")


def test_a_row_is_rewritten_and_all_else_stays() -> None:
    text = engine_rewritten(PROFILE, "host", {0: NEW})
    row = yaml.safe_load(text)["settings"]["host"][0]
    assert row["value"] == {"per_step_us": 123, "overlapped": True, "per_sequence_us": 0, "points": 42, "spread": 0.0512}  # fmt: skip
    assert (row["since"], row["until"], row["when"]) == ("0.1", "0.9", {"min_pp": 2})
    assert (row["evidence"], row["source"], row["note"]) == ("measured", 'rows of "a: b"', "fitted")
    assert PROFILE.partition('source: "x"}')[2] == text.partition('note: "fitted"}')[2]
    assert text.startswith(PROFILE[: PROFILE.index("    - {")])


@pytest.mark.parametrize(("setting", "row"), [("host", 2), ("hosts", 0)])
def test_a_row_that_is_not_there_is_said(setting: str, row: int) -> None:
    with pytest.raises(ValueError):
        engine_rewritten(PROFILE, setting, {row: NEW})


def ratios(rng: np.random.Generator, spread: float, groups: int = 60) -> list[Ratio]:
    """Rows of groups that differ from each other as much as rows within one do."""
    from sizing.specs.bands import Situation

    found = []
    for group in range(groups):
        offset = rng.normal(0, spread)
        situation = Situation(
            mode="served",
            vendor="NVIDIA",
            engine="vllm" if group % 2 else "sglang",
            architecture="hopper",
            kind="dense",
            load="low",
        )
        found += [
            Ratio("itl", situation, f"group {group}", float(np.exp(offset + rng.normal(0, spread)))) for _ in range(10)
        ]
    return found


RULES = BandRules(rows_per_run={}, least_rows=20, least_groups=4, tails=(0.1, 0.05, 0.02), covered=0.8)


def test_bands_are_as_wide_as_the_rows_of_a_class() -> None:
    """ln(ratio) is normal with variance 2 * 0.1**2, so P10 and P90 are exp(-+1.2816 * 0.1414) = 0.834 and 1.199."""
    band = next(band for band in bands_of(ratios(np.random.default_rng(5), 0.1, 400), 0.1, RULES) if band.engine == "vllm")  # fmt: skip
    assert (band.low, band.high) == pytest.approx((0.834, 1.199), abs=0.02)
    assert (band.n, band.groups) == (2000, 200)


def test_a_class_of_few_groups_falls_back() -> None:
    """Of one engine there are three groups: too few for a band of its own, which is that of both together."""
    few = [ratio for ratio in ratios(np.random.default_rng(6), 0.1, 6) if ratio.group != "group 0"]
    bands = bands_of(few, 0.1, RULES)
    assert {band.engine for band in bands} == {None}
    assert {(band.n, band.groups) for band in bands} == {(50, 5)}
    assert bands_of(few[:15], 0.1, RULES) == []


def test_the_tail_covers_groups_left_out() -> None:
    tail, covered = tail_of(ratios(np.random.default_rng(7), 0.2), calibration())
    assert 0.75 <= covered <= 0.85
    assert tail in shelf.only(Calibration).bands.tails


@pytest.mark.parametrize("module", ["sizing.calibration", "sizing.calibration.bands"])
@pytest.mark.parametrize(("content", "said"), [(None, "not found"), ("", "column"), ("a,b\n1,2\n", "column")])
def test_wrong_input_is_a_line_and_exit_2(module: str, content: str | None, said: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    if content is not None:
        rows.write_text(content, encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", module, str(rows)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_rule_leaves_out_a_row_or_figures_of_it() -> None:
    row = MeasuredRow(
        id="a:12", engine="vllm", model="m", gpu="g", isl=1, osl=9, mode="closed_loop", ttft_ms=10.0, itl_ms=2.0,
        ttft_p99_ms=25.0,
    )  # fmt: skip
    assert known_of(row, [NotFitted(id="a:1[3-9]$", why="doubtful")]) == row
    assert known_of(row, [NotFitted(id="a:1[0-9]$", why="doubtful")]) is None
    first = NotFitted(p99_over_mean=2.0, figures=("ttft_ms",), why="the first request compiled kernels")
    known = known_of(row, [first])
    assert known is not None and known.measured() == {"itl_ms": 2.0}
    assert known_of(replace(row, ttft_p99_ms=19.0), [first]) == replace(row, ttft_p99_ms=19.0)
    assert known_of(row, [first, NotFitted(figures=("itl_ms",), why="doubtful")]) is None
