"""Collectives refitted: times that made a table come back, rows kept stay, and nothing but numbers of rows is written."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from builders import kernels_for, real_gpu, toy_model
from places import SHARED

from sizing.calibration import kernels
from sizing.calibration.kernels import CollectiveKey, Messages, RefittedRow, messages_in, refit, refits, why_kept, write
from sizing.calibration.profiles import gpu_rewritten, written
from sizing.catalog import profiles, shelf
from sizing.catalog.shelf import Found as Loaded
from sizing.model.operations import Operation
from sizing.replica import links
from sizing.specs.calibration import Calibration
from sizing.specs.errors import InputError
from sizing.specs.gpu import CollectiveRow, Gpu

pytest.importorskip("scipy")

GPU = "h100-sxm"
CALIBRATION = shelf.only(Calibration)
KIB, US = (16.0, 128.0, 1024.0, 8192.0, 65536.0), (9.0, 10.0, 20.0, 80.0, 500.0)
KERNEL_DATA = SHARED / "facts" / "kernel_data"
NAMED = {"gpu": "h100_sxm", "source": "vllm", "backend": "vllm_graph", "op": "all_reduce", "n_gpus": 8}


def seconds(sizes: list[float]) -> np.ndarray:
    return np.asarray(links.measured_s(np.array(sizes), KIB, US))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tables, written from known times."""
    path = tmp_path_factory.mktemp("kernels")
    sizes = [2.0**power for power in range(10, 30)]  # 1 KiB to 512 MiB, of which the largest is not read
    points = [{**NAMED, "bytes": size, "us": s * 1e6} for size, s in zip(sizes, seconds(sizes), strict=True)]
    for name, lines in ((kernels.POINTS, points), (kernels.VERSIONS, [{**NAMED, "version": "9.9.9"}])):
        with (path / name).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
    return path


@pytest.fixture(scope="module")
def found(folder: Path) -> RefittedRow:
    (one,) = refits(messages_in(folder, CALIBRATION.collectives), CALIBRATION)
    return one


def test_the_times_that_made_a_table_come_back(found: RefittedRow) -> None:
    row = found.fit  # at the sizes of the row that the table has, in between those that it was made from
    stated = {size: us for size, us in zip(row.kib, row.us, strict=True) if KIB[0] <= size <= KIB[-1] / 2}
    expected = 1e6 * seconds([size * 1024 for size in stated])
    assert len(stated) >= 5 and list(stated.values()) == pytest.approx(expected, rel=0.03)
    assert len(found.messages.bytes) == 19
    assert found.after.p90 < 0.04 and found.left_out.median < 0.04  # the table bends at other sizes than the row has
    assert found.before.median > 0.02 and found.helps(CALIBRATION.least_gain)


def row_of(gpus: int = 8) -> CollectiveRow:
    every = (row for row in real_gpu(GPU).efficiency if isinstance(row, CollectiveRow))
    return next(row for row in every if (row.engine, row.operation, row.gpus) == ("vllm", "all_reduce", gpus))


def test_a_row_is_timed_as_a_step_times_it() -> None:
    links = kernels_for(toy_model(), real_gpu(GPU), engine="vllm:0.12.0")  # which sums and norms apart
    for power in (10, 18, 24, 29):
        one = Operation("x", "all_reduce", 1, message_bytes=2.0**power, gpus=8)
        expected_s = float(links.seconds(one))
        (row,) = (choice.row for (rule, _), choice in links.choices([one]).items() if rule == "all_reduce")
        assert kernels.seconds(row, np.array([2.0**power])) == pytest.approx([expected_s], rel=1e-12)


def test_sizes_left_out_have_no_say_and_a_point_far_off_moves_nothing() -> None:
    """One size of twenty is slower by e; which only a fit with it could know."""
    sizes = [float(2**power) for power in range(10, 30)]
    slower = seconds(sizes) * np.where(np.array(sizes) == 2**20, np.e, 1)
    made = row_of().model_copy(update={"kib": KIB, "us": US})
    key = CollectiveKey(GPU, "all_reduce", "vllm", 8, "vllm_graph")
    one = refit(key, 0, made, Messages("", np.array(sizes), slower), CALIBRATION)
    assert one.fit.us == pytest.approx(US, rel=0.05)
    assert not one.helps(CALIBRATION.least_gain)


def test_what_is_not_stated_by_a_rule_may_be_anything(found: RefittedRow) -> None:
    rules = CALIBRATION.collectives
    assert why_kept(CollectiveKey("l40s", "all_to_all", "any", 8, "nccl"), rules)
    assert why_kept(CollectiveKey("l40s", "all_to_all", "any", 2, "nccl"), rules) is None
    assert why_kept(CollectiveKey("h100-sxm", "all_to_all", "any", 8, "nccl"), rules) is None
    assert not found._replace(kept="on purpose").helps(CALIBRATION.least_gain)


def test_only_numbers_of_rows_that_help_are_written(
    found: RefittedRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = profiles.load_gpu(GPU).path
    copy = tmp_path / original.name
    shutil.copy(original, copy)
    monkeypatch.setattr(kernels.profiles, "load_gpu", lambda name: Loaded(real_gpu(name), name, copy))
    assert write([found, found._replace(number=found.number + 1, kept="on purpose")], CALIBRATION) == [copy]
    old, new = original.read_text(encoding="utf-8").splitlines(), copy.read_text(encoding="utf-8").splitlines()
    ((before, after),) = [(was, now) for was, now in zip(old, new, strict=True) if was != now]
    was, now = yaml.safe_load(before)[0], yaml.safe_load(after)[0]
    changed = {name for name in now if was.get(name) != now[name]}
    assert changed <= {"version", "points", "median_error", "p90_error", "source", "date", "us"}
    row = Gpu.model_validate(yaml.safe_load("\n".join(new)), strict=False).efficiency[found.number]
    assert isinstance(row, CollectiveRow) and row.us == found.fit.us
    assert (row.version, row.points) == ("9.9.9", 19)
    assert row.source.endswith("refitted by sizing.calibration.kernels")


PROFILE = """name: some
efficiency:
  # - {operation: gemm, t0_us: 1, source: "a comment"}
  - {operation: gemm, version: "1",   t0_us: 5.93,  p: 1.65, points: 4704,  source: "t0_us: 7, {p: 3}", date: "x"}  # kept
  - {operation: all_reduce, kib: [16, 128], us: [5, 7.25],   points: 23, source: "y", date: "x"}

prices:
  - {provider: some, source: "z"}
"""


def test_a_row_is_rewritten_and_columns_stay() -> None:
    first = {"version": "12", "t0_us": 6.8, "p": 1.0, "points": 52.0, "source": 'of "x"'}
    text = gpu_rewritten(PROFILE, {0: first, 1: {"us": (4.0, 7.5), "p90_error": 0.2}})
    lines = text.splitlines()
    assert lines[3] == '  - {operation: gemm, version: "12",  t0_us: 6.8,   p: 1,    points: 52,    source: "of \\"x\\"",         date: "x"}  # kept'  # fmt: skip
    assert lines[4] == '  - {operation: all_reduce, kib: [16, 128], us: [4, 7.5],    points: 23, p90_error: 0.2, source: "y", date: "x"}'  # fmt: skip
    assert [*lines[:3], *lines[5:]] == [*PROFILE.splitlines()[:3], *PROFILE.splitlines()[5:]]
    assert gpu_rewritten(PROFILE, {}) == PROFILE


@pytest.mark.parametrize(("text", "row"), [(PROFILE, 2), ("name: some\n", 0)])
def test_a_row_that_is_not_there_is_said(text: str, row: int) -> None:
    with pytest.raises(ValueError):
        gpu_rewritten(text, {row: {"p": 1.0}})


def test_numbers_are_written_as_profiles_write_them() -> None:
    assert [written(value) for value in (1.0, 0.25, 1234.0, (1.0, 0.5))] == ["1", "0.25", "1234", "[1, 0.5]"]


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (lambda text: text.replace(",bytes,", ",length,", 1), 1, "has no column bytes"),
        (lambda text: text.replace(",1024.0,", ",nan,", 1), 2, "bytes"),
        (lambda text: text.replace(",2048.0,", ",-3,", 1), 3, "'-3'"),
        (lambda text: text.splitlines()[0] + "\n", None, "holds no rows"),
        (lambda text: "", 1, "has no column"),
    ],
)
def test_a_wrong_file_is_one_fault(
    folder: Path, tmp_path: Path, change: Callable[[str], str], line: int | None, said: str
) -> None:
    copy = tmp_path / "some"
    shutil.copytree(folder, copy)
    path = copy / kernels.POINTS
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(InputError) as raised:
        messages_in(copy, CALIBRATION.collectives)
    (fault,) = raised.value.faults
    assert fault.line == line and said in str(fault) and path.name in str(fault)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sizing.calibration.kernels", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_says_what_it_would_change(folder: Path) -> None:
    done = run(str(folder))
    assert done.returncode == 0 and done.stderr == "" and "wrote" not in done.stdout
    assert "all_reduce vllm 8 GPUs" in " ".join(done.stdout.split()) and "yes" in done.stdout


@pytest.mark.parametrize("here", [False, True])
def test_the_command_refuses_wrong_input_in_a_line(folder: Path, tmp_path: Path, here: bool) -> None:
    """No such folder; and one whose names are not known, so that nothing is left to fit."""
    copy = tmp_path / "some"
    if here:
        shutil.copytree(folder, copy)
        path = copy / kernels.POINTS
        path.write_text(path.read_text(encoding="utf-8").replace("h100_sxm", "h999_sxm"), encoding="utf-8")
    done = run(str(copy))
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr


@pytest.mark.skipif(not KERNEL_DATA.is_dir(), reason="no measured kernels here")
def test_tables_without_a_row_have_a_reason() -> None:
    rules = CALIBRATION.collectives
    tables = messages_in(KERNEL_DATA, rules)
    rows = {
        CollectiveKey(profile, row.operation, row.engine, row.gpus, row.backend)
        for profile in set(rules.gpus.values())
        for row in profiles.load_gpu(profile).spec.efficiency
        if isinstance(row, CollectiveRow)
    }
    assert len(tables.keys() & rows) > 150
    assert [key for key in tables.keys() - rows if not why_kept(key, rules)] == []
