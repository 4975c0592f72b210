"""Kernels refitted: constants that made the tables come back, rows kept stay, and nothing but numbers of rows is written."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from builders import kernels_for, real_gpu, toy_model
from places import SHARED

from sizing.calibration import kernel_fit, kernel_refits
from sizing.calibration.kernel_points import KernelPoint, Published, Summary, differences, restated, why_kept
from sizing.calibration.kernel_refits import KernelRefits, RefittedRow, refits, write
from sizing.calibration.kernel_tables import FILES, Key, load_tables
from sizing.calibration.kernels import not_read
from sizing.calibration.profiles import gpu_rewritten, written
from sizing.catalog import profiles, shelf
from sizing.catalog.shelf import Found as Loaded
from sizing.model.attention.terms import Work
from sizing.model.operations import Operation
from sizing.replica import roofline
from sizing.replica import roofline as network
from sizing.specs.calibration import Calibration
from sizing.specs.errors import InputError
from sizing.specs.gpu import CollectiveRow, Gpu, PrefillAttentionRow

pytest.importorskip("scipy")

GPU, PEAK, BANDWIDTH = "h100-sxm", 989.4e12, 3350e9  # its 16-bit peak and bandwidth, by its datasheet
CALIBRATION = shelf.only(Calibration)
TERMS = kernel_fit.Terms(CALIBRATION.kernels.bounds, CALIBRATION.loss_scale, CALIBRATION.folds)
PRODUCT = {"t0_us": 9.0, "compute": 0.5, "memory": 0.6, "p": 2.0}
EXPERTS = {"t0_us": 30.0, "compute": 0.3, "memory": 0.7, "p": 1.5}
DECODE = {"t0_us": 20.0, "memory": 0.6}
TOKENS, SHARES = (128, 512, 1024, 2048, 4096, 8192, 16384), (0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6)
KIB, US = (16.0, 128.0, 1024.0, 8192.0, 65536.0), (9.0, 10.0, 20.0, 80.0, 500.0)
KERNEL_DATA = SHARED / "facts" / "kernel_data"

Line = dict[str, Any]
MEASURED = {"gpu": "h100_sxm", "framework": "vllm"}
FITTED = {**MEASURED, "version": "9.9.9", "n_points": 9, "t0_us": 1, "median_abs_err": 0.1, "p90_abs_err": 0.2}


def product_s(flops: float, moved: float, constants: dict[str, float]) -> float:
    return float(
        roofline.combined_s(
            flops,
            moved,
            peak_flops=PEAK,
            compute=constants["compute"],
            bandwidth_bytes_per_s=BANDWIDTH,
            memory=constants["memory"],
            p=constants["p"],
            t0_s=constants["t0_us"] * 1e-6,
        )
    )


def gemm_lines() -> Iterator[Line]:
    for m in (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        for weights, named in ((2**23, "4-16Mi"), (2**25, "16-64Mi"), (2**27, "64-256Mi"), (2**20, "<4Mi")):
            flops, moved = 2.0 * m * weights, 2.0 * weights
            seconds = product_s(flops, moved, PRODUCT) * (5.0 if named == "<4Mi" else 1.0)  # those are not fitted
            shares = {"flop_frac_p50": flops / PEAK / seconds, "bw_frac_p50": moved / BANDWIDTH / seconds}
            yield {**MEASURED, "dtype": "bfloat16", "m_bin_lo": m, "weight_elems_bin": named, "lat_us_median": seconds * 1e6, **shares}  # fmt: skip


def moe_lines(dtype: str = "bfloat16") -> Iterator[Line]:
    for tokens in (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        for weights in (2**22, 2**25):
            for routing, slower in (("balanced", 3.0), ("power_law_1.2", 1.0)):  # routing that is not asked for
                flops, moved = 4.0 * tokens * weights, 2.0 * weights * min(2 * tokens, 64)
                seconds = product_s(flops, moved, EXPERTS) * slower
                shares = {"flop_frac": flops / PEAK / seconds, "weight_bw_frac": moved / BANDWIDTH / seconds}
                yield {**MEASURED, "dtype": dtype, "routing": routing, "num_tokens": tokens, "lat_us": seconds * 1e6, **shares}  # fmt: skip


def decode_lines() -> Iterator[Line]:
    heads = {"kv_dtype": "bfloat16", "head_dim": 128, "q_heads": 32, "kv_heads": 8}
    for batch in (1, 8, 64):
        for length in (128, 1024, 4096, 16384):
            moved = batch * length * 2 * 8 * 128 * 2  # keys and values, 8 heads of 128, two bytes each
            seconds = DECODE["t0_us"] * 1e-6 + moved / (BANDWIDTH * DECODE["memory"])
            yield {**MEASURED, **heads, "batch": batch, "kv_len": length, "lat_us": seconds * 1e6, "kv_mb": moved / 1e6}


def prefill_lines() -> Iterator[Line]:
    heads = {"attn_dtype": "bfloat16", "kv_dtype": "bfloat16", "head_dim": 128, "q_heads": 32, "kv_heads": 8}
    for batch in (1, 4):
        for length in (1, 16, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384):
            flops = 4 * batch * 32 * 128 * length * (length + 1) / 2  # scores and values, two operations each
            share = float(roofline.curve_share(length, TOKENS, SHARES))
            moved = batch * length * (2 * 8 + 2 * 32) * 128 * 2  # keys, values; queries, outputs
            seconds = 15e-6 + max(flops / (PEAK * share), moved / BANDWIDTH)
            yield {**MEASURED, **heads, "batch": batch, "isl": length, "lat_us": seconds * 1e6}


def collective_lines() -> Iterator[Line]:
    for power in range(10, 29):  # 1 KiB to 256 MiB
        seconds = float(network.measured_s(2.0**power, KIB, US))
        yield {"gpu": "h100_sxm", "source": "vllm", "backend": "vllm_graph", "op": "all_reduce", "n_gpus": 8, "bytes": 2**power, "us": seconds * 1e6}  # fmt: skip


PEAKS = {"peak_tflops_dense": 989.4, "peak_bw_gbs": 3350, "eff_compute": 0.5, "eff_mem": 0.5, "pnorm": 1}
PROMPTS = {f"ff_isl{length}": "" for length in TOKENS}
TABLES: dict[str, Callable[[], list[Line]]] = {
    "gemm": lambda: list(gemm_lines()),
    "gemm_fit": lambda: [{**FITTED, **PEAKS, "dtype": "bfloat16"}],
    "moe": lambda: [*moe_lines(), *moe_lines("w4a16_mxfp4")],
    "moe_fit": lambda: [
        {**FITTED, **PEAKS, "dtype": dtype, "routing": "power_law_1.2"} for dtype in ("bfloat16", "w4a16_mxfp4")
    ],
    "decode": lambda: list(decode_lines()),
    "decode_fit": lambda: [{**FITTED, **PEAKS, "kv_dtype": "bfloat16", "head_dim": 128}],
    "prefill": lambda: list(prefill_lines()),
    "prefill_fit": lambda: [
        {**FITTED, **PEAKS, **PROMPTS, "attn_dtype": "bfloat16", "kv_dtype": "bfloat16", "head_dim": 128}
    ],
    "mla_fit": lambda: [
        {
            **FITTED,
            "framework": "sglang",
            "kv_dtype": "bfloat16",
            "q_heads_local": 16,
            "eff_mem": 0.1,
            "eff_compute_bf16peak": "",
        }
    ],
    "collectives": lambda: list(collective_lines()),
    "collective_fit": lambda: [
        {
            "gpu": "h100_sxm",
            "source": "vllm",
            "version": "9.9.9",
            "backend": "vllm_graph",
            "op": "all_reduce",
            "n_gpus": 8,
        }
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tables, written from known constants."""
    path = tmp_path_factory.mktemp("kernels")
    for table, (name, _) in FILES.items():
        lines = TABLES[table]()
        with (path / name).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
    return path


@pytest.fixture(scope="module")
def found(folder: Path) -> KernelRefits:
    return refits(load_tables(folder), CALIBRATION)


def of(found: KernelRefits, operation: str, precision: str = "bf16") -> RefittedRow:
    """Return the one row of an operation that the folder has points for."""
    (one,) = (row for row in found.refitted if row.key.operation == operation and row.key.precision in ("", precision))
    return one


@pytest.mark.parametrize(
    ("operation", "made_from"),
    [
        ("gemm", PRODUCT),
        ("moe", EXPERTS),
        ("decode_attention", DECODE),
        ("prefill_attention", {"t0_us": 15.0, "flop_fraction": SHARES}),
        ("all_reduce", {"us": US}),
    ],
)
def test_the_constants_that_made_a_table_come_back(
    found: KernelRefits, operation: str, made_from: dict[str, Any]
) -> None:
    one = of(found, operation)
    constants = kernel_fit.constants_of(one.fit.row)
    assert constants.keys() == made_from.keys()
    for name, value in made_from.items():
        if name == "us":  # at the sizes of the row that the table has, in between those that it was made from
            row = cast(CollectiveRow, one.fit.row)
            stated = {size: us for size, us in zip(row.kib, row.us, strict=True) if KIB[0] <= size <= KIB[-1] / 2}
            expected = [1e6 * float(network.measured_s(size * 1024, KIB, US)) for size in stated]
            assert len(stated) >= 5 and list(stated.values()) == pytest.approx(expected, rel=0.03)
            continue
        assert constants[name] == pytest.approx(value, rel=0.01), name
    bent = 0.04 if operation == "all_reduce" else 0.01  # the table bends at other sizes than the row has
    assert one.fit.after.p90 < bent and one.fit.left_out.median < bent
    assert one.fit.before.median > 0.02 and one.helps(CALIBRATION.least_gain)


OPERATIONS = {
    "gemm": [Operation("x", "gemm", 1, 10.0**f, 10.0**b) for f, b in ((9, 7), (11, 8), (13, 9))],
    "moe": [Operation("x", "moe", 1, 10.0**f, 10.0**b) for f, b in ((9, 8), (12, 9), (13, 10))],
    "decode_attention": [
        Operation("x", "decode_attention", 1, 0.0, 10.0**b, work=Work("", 0.0, 0.0, head_dim=64)) for b in (6, 8)
    ],
    "prefill_attention": [
        Operation("x", "prefill_attention", 1, 1e10, 10.0**b, work=Work("", 0.0, 0.0, head_dim=64, prompt_tokens=size))
        for size, b in ((40.0, 6), (700.0, 6), (9000.0, 6), (9000.0, 12))
    ],
    "all_reduce": [Operation("x", "all_reduce", 1, message_bytes=2.0**power, gpus=8) for power in (10, 18, 24, 29)],
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_row_is_timed_as_a_step_times_it(operation: str) -> None:
    unlike_any = real_gpu(GPU).model_copy(update={"architecture": "of its own"})  # so that its rows time it
    kernels = kernels_for(toy_model(), unlike_any)
    for one in OPERATIONS[operation]:
        expected_s = float(kernels.seconds(one))
        (row,) = (choice.row for (rule, _), choice in kernels.choices([one]).items() if rule == operation)
        size = (one.work.prompt_tokens if one.work else 0.0) or one.message_bytes
        point = KernelPoint(1.0, float(one.flops), float(one.bytes or one.message_bytes), float(size))
        assert kernel_fit.seconds(row, real_gpu(GPU), Summary("", (point,))) == pytest.approx(expected_s, rel=1e-12)


def test_a_few_points_that_are_far_off_do_not_move_it(found: KernelRefits) -> None:
    """One size in thirteen is slower by e: squared errors would take half a power of e for a fit of it."""
    row = of(found, "gemm").fit.row
    points = tuple(
        KernelPoint(
            product_s(flops := 2.0 * m * n, moved := 2.0 * n, PRODUCT) * (np.e if m == 64 else 1), flops, moved, m
        )
        for m in 2 ** np.arange(13)
        for n in (2**23, 2**25, 2**27)
    )
    fit = kernel_fit.fitted(row, real_gpu(GPU), Summary("", points), TERMS)
    assert (fit.t0_us, fit.compute, fit.memory) == pytest.approx((9.0, 0.5, 0.6), rel=0.02)  # type: ignore[union-attr]


def test_constants_keep_their_bounds() -> None:
    """Reads at 3 times the bandwidth: the share ends at its bound, 2."""
    row = next(one for one in real_gpu(GPU).efficiency if one.operation == "decode_attention")
    points = tuple(KernelPoint(moved / (3 * BANDWIDTH), 0.0, moved, moved) for moved in (1e8, 1e9, 1e10))
    fit = kernel_fit.rounded(kernel_fit.fitted(row, real_gpu(GPU), Summary("", points), TERMS))
    assert kernel_fit.constants_of(fit) == {"t0_us": 0.0, "memory": pytest.approx(2.0)}


def test_sizes_left_out_have_no_say() -> None:
    """All but the longest follow a line; that one is twice as slow, which only a fit with it can know."""
    row = next(one for one in real_gpu(GPU).efficiency if one.operation == "decode_attention")
    sizes = [1e6, 1e7, 1e8, 1e9, 1e10]
    points = tuple(KernelPoint((1e-5 + b / (0.5 * BANDWIDTH)) * (2 if b == 1e10 else 1), 0.0, b, b) for b in sizes)
    made = kernel_fit.with_constants(row, {"t0_us": 10.0, "memory": 0.5})
    fit = kernel_fit.refit(made, real_gpu(GPU), Summary("", points), TERMS)
    assert fit.left_out.p90 > 0.25 and fit.gain() <= CALIBRATION.least_gain


def test_a_row_changed_on_purpose_stays_however_well_it_fits(found: KernelRefits) -> None:
    """The table of vLLM's mxfp4 experts is fitted and would be written, were it not for the rule that keeps the row."""
    one = of(found, "moe", "mxfp4_bf16")
    assert one.kept and one.fit.gain() > 0.5
    assert not one.helps(CALIBRATION.least_gain)
    assert one._replace(kept=None).helps(CALIBRATION.least_gain)


def test_what_is_not_stated_by_a_rule_may_be_anything() -> None:
    kept = CALIBRATION.kernels.kept
    assert why_kept(Key("l40s", "all_to_all", "any", gpus=8, backend="nccl"), kept)
    assert why_kept(Key("l40s", "all_to_all", "any", gpus=2, backend="nccl"), kept) is None
    assert why_kept(Key("h100-sxm", "all_to_all", "any", gpus=8, backend="nccl"), kept) is None
    assert why_kept(Key("gb200", "mla_decode", "tensorrt-llm", "bf16", q_heads=8), kept)
    assert why_kept(Key("gb200", "mla_decode", "tensorrt-llm", "bf16", q_heads=16), kept) is None


def test_constants_alone_are_compared_and_not_written(found: KernelRefits) -> None:
    (one,) = found.compared
    assert str(one.key) == "mla_decode sglang bf16 16 heads"
    assert one.differences == ["t0_us 15.1, published 1", "memory 0.857, published 0.1"]


def test_published_shares_are_restated_against_the_own_peaks() -> None:
    """Of a peak of 14,000 a share of 0.3 is 0.3 * 14000/12000 = 0.35 of 12,000; 0.5 of 1.6 TB/s is 0.4 of 2 TB/s."""
    fit = Published("", {"compute": 0.3, "memory": 0.5, "flop_fraction@128": 0.06, "p": 2.0}, 14e15, 1.6e12)
    own = restated(fit, 12e15, 2e12)
    assert own == pytest.approx({"compute": 0.35, "memory": 0.4, "flop_fraction@128": 0.07, "p": 2.0})
    row = next(one for one in real_gpu(GPU).efficiency if isinstance(one, PrefillAttentionRow))
    share = row.flop_fraction[row.tokens.index(128)]
    assert differences(row, {"flop_fraction@128": share, "flop_fraction@100": 9.9}) == []
    assert differences(row, {"flop_fraction@128": None}) == [f"flop_fraction@128 {share:g}, published none"]


def test_only_numbers_of_rows_that_help_are_written(
    found: KernelRefits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = profiles.load_gpu(GPU).path
    copy = tmp_path / original.name
    shutil.copy(original, copy)
    monkeypatch.setattr(kernel_refits.profiles, "load_gpu", lambda name: Loaded(real_gpu(name), name, copy))
    assert write(found.refitted, CALIBRATION) == [copy]
    old, new = original.read_text(encoding="utf-8").splitlines(), copy.read_text(encoding="utf-8").splitlines()
    changed = [(before, after) for before, after in zip(old, new, strict=True) if before != after]
    helped = [one for one in found.refitted if one.helps(CALIBRATION.least_gain)]
    assert len(changed) == len(helped) == 5
    rows = {"version", "points", "median_error", "p90_error", "source", "date", "t0_us", "compute", "memory", "p", "flop_fraction", "us"}  # fmt: skip
    for before, after in changed:
        was, now = yaml.safe_load(before)[0], yaml.safe_load(after)[0]
        assert {name for name in now if was.get(name) != now[name]} <= rows
        assert set(was) <= set(now)
    document = yaml.safe_load("\n".join(new))
    gpu = Gpu.model_validate(document, strict=False)
    for one in helped:
        row = gpu.efficiency[one.number]
        assert kernel_fit.constants_of(row) == kernel_fit.constants_of(one.fit.row)
        assert (row.version, row.points) == ("9.9.9", one.fit.points)
        assert row.source.endswith("refitted by sizing.calibration.kernels")
    mxfp4 = of(found, "moe", "mxfp4_bf16")
    assert gpu.efficiency[mxfp4.number] == mxfp4.row


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


def test_every_missing_file_is_one_fault(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "some"
    shutil.copytree(folder, copy)
    for name in ("aic_moe.csv", "aic_comm_fit.csv"):
        (copy / name).unlink()
    with pytest.raises(InputError) as raised:
        load_tables(copy)
    assert [Path(fault.file or "").name for fault in raised.value.faults] == ["aic_moe.csv", "aic_comm_fit.csv"]
    with pytest.raises(InputError, match="is no folder"):
        load_tables(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (lambda text: text.replace("kv_len", "length", 1), 1, "has no column kv_len"),
        (lambda text: re.sub(r",1,128,[^,]*,", ",1,128,nan,", text, count=1), 2, "lat_us"),
        (lambda text: re.sub(r",1,128,[^,]*,", ",1,128,-3,", text, count=1), 2, "'-3'"),
        (lambda text: text.replace(",8,1024,", ",many,1024,", 1), 7, "'many'"),
        (lambda text: text.splitlines()[0] + "\n", None, "holds no rows"),
        (lambda text: "", 1, "has no column"),
    ],
)
def test_a_wrong_file_is_one_fault(
    folder: Path, tmp_path: Path, change: Callable[[str], str], line: int | None, said: str
) -> None:
    copy = tmp_path / "some"
    shutil.copytree(folder, copy)
    path = copy / "aic_decode_attention.csv"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(InputError) as raised:
        load_tables(copy)
    (fault,) = raised.value.faults
    assert fault.line == line and said in str(fault) and path.name in str(fault)


def test_names_that_are_not_known_are_said(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "some"
    shutil.copytree(folder, copy)
    path = copy / "aic_decode_attention.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("h100_sxm", "h999_sxm"), encoding="utf-8")
    tables = load_tables(copy)
    assert [line.partition(" (")[0] for line in not_read(tables, CALIBRATION)] == ["not read: gpus h999_sxm"]
    assert "decode_attention" not in {one.key.operation for one in refits(tables, CALIBRATION).refitted}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sizing.calibration.kernels", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_says_what_it_would_change(folder: Path) -> None:
    done = run(str(folder))
    assert done.returncode == 0 and done.stderr == "" and "wrote" not in done.stdout
    assert "start-up time halved" in " ".join(done.stdout.split())
    assert re.search(r"decode_attention\s+│ 1\s+│ 1\s+│", done.stdout)


def test_the_command_refuses_wrong_input_in_a_line_each(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "aic_moe.csv").write_text("gpu\nx\n", encoding="utf-8")
    done = run(str(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == len(FILES) and "Traceback" not in done.stderr


@pytest.mark.skipif(not KERNEL_DATA.is_dir(), reason="no measured kernels here")
def test_the_profiles_hold_what_was_published() -> None:
    """Where tables have constants alone the profiles' are the same, but for rows with a reason; so are tables without a row."""
    real = refits(load_tables(KERNEL_DATA), CALIBRATION)
    assert len(real.refitted) > 250 and len(real.compared) > 500
    assert [one.key for one in real.compared if one.differences and not one.kept] == []
    assert [key for key in real.without_row if not why_kept(key, CALIBRATION.kernels.kept)] == []
