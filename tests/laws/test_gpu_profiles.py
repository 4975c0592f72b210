"""Laws that every GPU profile and the storage formats must obey: identity, datasheet, formats."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import yaml
from gpu_profiles import EVERY, FILES, FORMATS, GPUS


def _normal(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _identities(stem: str) -> set[str]:
    gpu = GPUS[stem]
    return {_normal(name) for name in (stem, gpu.name, *gpu.aliases)}


def _owners(name: str) -> list[str]:
    return [stem for stem in GPUS if _normal(name) in _identities(stem)]


# --- identity ---------------------------------------------------------------------------------------------


def test_the_catalogue_is_complete() -> None:
    nvidia = """
        h100-sxm h100-pcie h100-nvl h200-sxm h200-nvl gh200-96gb gh200-144gb h20
        a100-sxm-40gb a100-sxm-80gb a100-pcie-40gb a100-pcie-80gb a10 a10g a30 a40 rtx-a6000 rtx-3090
        l40s l40 l4 rtx-4090 rtx-6000-ada t4 v100-sxm2-16gb v100-sxm2-32gb
        b200 b300 gb200 gb300 rtx-5090 rtx-pro-6000-workstation rtx-pro-6000-server gb10
        h20-141gb h800-sxm a800-sxm-80gb l20 gh200-96gb-nvl4 gh200-144gb-nvl2 gb200-nvl4 rtx-pro-6000-max-q rtx-pro-5000-48gb
        rtx-pro-5000-72gb rtx-a5000 rtx-5080 rtx-4080 rtx-3060-12gb
    """
    amd = "mi100 mi250 mi250x mi300x mi325x mi350x mi355x mi308x"
    for vendor, stems in (("NVIDIA", nvidia), ("AMD", amd)):
        assert {stem for stem, gpu in GPUS.items() if gpu.vendor == vendor} == set(stems.split())


@EVERY
def test_the_first_two_lines_carry_name_and_aliases(stem: str) -> None:
    lines = FILES[stem].read_text(encoding="utf-8").splitlines()
    first, second = lines[1:3] if lines[0].startswith("# yaml-language-server: ") else lines[:2]
    assert first.startswith("name: ") and re.fullmatch(r"aliases: \[.*\]", second)
    head = yaml.safe_load(f"{first}\n{second}")
    assert head == {"name": GPUS[stem].name, "aliases": list(GPUS[stem].aliases)}


@EVERY
def test_the_file_stem_is_a_lower_case_id(stem: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", stem)


@EVERY
def test_no_alias_repeats_another_of_its_file(stem: str) -> None:
    gpu = GPUS[stem]
    names = [_normal(name) for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))


def test_no_name_belongs_to_two_gpus() -> None:
    claims = Counter(name for stem in GPUS for name in _identities(stem))
    assert [name for name, owners in claims.items() if owners > 1] == []


@pytest.mark.parametrize(
    ("written", "stem"),
    [
        ("H100", "h100-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("H100-SXM-80GB", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("H200", "h200-sxm"),
        ("H200-SXM-141GB", "h200-sxm"),
        ("A100-SXM-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100-PCIe-80GB", "a100-pcie-80gb"),
        ("B200-SXM-180GB", "b200"),
        ("GB200-186GB", "gb200"),
        ("RTXPRO6000-BSE-96GB", "rtx-pro-6000-server"),
        ("RTX3090-24GB", "rtx-3090"),
        ("RTX4090-24GB", "rtx-4090"),
        ("RTX5090-32GB", "rtx-5090"),
        ("MI100-32GB", "mi100"),
        ("MI250-128GB", "mi250"),
        ("MI300X-192GB", "mi300x"),
        ("MI350X-288GB", "mi350x"),
        ("A10G-24GB", "a10g"),
        ("A40-48GB", "a40"),
        ("L40S-48GB", "l40s"),
        ("H20-96GB", "h20"),
        ("Tesla T4", "t4"),
    ],
)
def test_usual_spellings_name_one_gpu(written: str, stem: str) -> None:
    assert _owners(written) == [stem]


@pytest.mark.parametrize("family", ["A100", "V100", "GH200", "RTX PRO 6000", "A100 SXM", "A100 PCIe"])
def test_a_family_with_several_memory_sizes_is_left_open(family: str) -> None:
    assert _owners(family) == []


# --- datasheet --------------------------------------------------------------------------------------------


@EVERY
def test_visible_memory_is_below_the_marketed_size_even_in_binary_units(stem: str) -> None:
    memory = GPUS[stem].datasheet.memory
    # A marketed GB may mean a GiB, 1.0737 times 10^9 bytes, and never more.
    assert memory.cuda_visible_gib * 2**30 <= memory.marketed_gb * 1.074e9
    assert memory.cuda_visible_gib * 2**30 >= memory.marketed_gb * 0.97e9
    if memory.nvidia_smi_mib is not None:
        assert memory.cuda_visible_gib * 1024 <= memory.nvidia_smi_mib


@pytest.mark.parametrize(
    ("stem", "smi_mib"),
    [
        ("h100-sxm", 81559),
        ("a100-sxm-80gb", 81920),
        ("a100-sxm-40gb", 40960),
        ("a10", 23028),
        ("l40s", 46068),
        ("l4", 23034),
        ("t4", 15360),
        ("h200-sxm", 143771),
        ("b200", 183359),
        ("rtx-4090", 24564),
    ],
)
def test_nvidia_smi_totals(stem: str, smi_mib: int) -> None:
    assert GPUS[stem].datasheet.memory.nvidia_smi_mib == smi_mib


@pytest.mark.parametrize(
    ("stem", "visible_gib"),
    [
        ("h100-sxm", 79.19),
        ("a100-sxm-40gb", 39.38),
        ("h200-sxm", 139.8),
        ("b200", 178.36),
        ("rtx-4090", 23.5),
    ],
)
def test_memory_that_engine_logs_report(stem: str, visible_gib: float) -> None:
    assert GPUS[stem].datasheet.memory.cuda_visible_gib == visible_gib


@pytest.mark.parametrize(
    ("stem", "gb_per_s"),
    [
        ("h100-sxm", 3350),
        ("h100-pcie", 2039),
        ("h200-sxm", 4800),
        ("a100-sxm-40gb", 1555),
        ("a100-sxm-80gb", 2039),
        ("a100-pcie-80gb", 1935),
        ("l40s", 864),
        ("l4", 300),
        ("t4", 320),
        ("rtx-4090", 1008),
        ("b200", 8000),
        ("mi300x", 5300),
    ],
)
def test_memory_bandwidth(stem: str, gb_per_s: float) -> None:
    assert GPUS[stem].datasheet.memory.bandwidth_gb_per_s == gb_per_s


@EVERY
def test_tensor_peaks_step_as_the_hardware_does(stem: str) -> None:
    gpu, peak = GPUS[stem], GPUS[stem].datasheet.dense_tflops
    half = peak.bf16 or peak.fp16
    if peak.tf32 is not None:
        assert peak.tf32 * 2 == pytest.approx(half, rel=0.015)
    if peak.fp8 is not None:
        assert peak.fp8 / half == pytest.approx(2, rel=0.03)  # L40S: 733 printed for 724
    if peak.fp4 is not None and peak.fp8 is not None:
        # Twice FP8; three times on Blackwell Ultra (10.3); four times on GeForce, whose FP8 rate is halved.
        ratio = {"b300": 3, "gb300": 3, "rtx-5090": 4, "rtx-5080": 4}.get(stem, 2)
        assert peak.fp4 / peak.fp8 == pytest.approx(ratio, rel=0.01)
    if peak.bf16 is not None and gpu.architecture != "cdna1":
        assert peak.bf16 == peak.fp16


@EVERY
def test_precisions_exist_where_the_generation_has_them(stem: str) -> None:
    gpu, peak = GPUS[stem], GPUS[stem].datasheet.dense_tflops
    has_fp8 = gpu.architecture in {"ada", "hopper", "blackwell", "blackwell-rtx", "cdna3", "cdna4"}
    has_fp4 = gpu.architecture in {"blackwell", "blackwell-rtx", "cdna4"}
    assert (peak.fp8 is not None, peak.fp4 is not None) == (has_fp8, has_fp4)
    assert (peak.bf16 is None) == (gpu.architecture in {"volta", "turing"})


@EVERY
def test_the_half_precision_peak_is_that_of_tensor_cores(stem: str) -> None:
    # A table that lists 19.5 for the A100 or 51 for the H100 quotes the vector rate: 16 to 19 times too slow.
    peak = GPUS[stem].datasheet.dense_tflops
    assert peak.fp16 >= 1.9 * peak.fp32


# What datasheets print with 2:4 sparsity, by architecture and precision group.
SPARSE_TFLOPS = {
    "h100-sxm": {"bf16": 1979, "fp8": 3958},
    "h100-pcie": {"bf16": 1513, "fp8": 3026},
    "h100-nvl": {"bf16": 1671, "fp8": 3341},
    "h200-sxm": {"bf16": 1979, "fp8": 3958},
    "gh200-96gb": {"bf16": 1979, "fp8": 3958},
    "gh200-144gb": {"bf16": 1979, "fp8": 3958},
    "a100-sxm-80gb": {"bf16": 624, "int8": 1248},
    "l40s": {"bf16": 733, "fp8": 1466},
    "l4": {"bf16": 242, "fp8": 485},
    "a10": {"bf16": 250, "int8": 500},
    "rtx-a6000": {"bf16": 309.7},
    "rtx-6000-ada": {"fp8": 1457},
    "rtx-5090": {"fp4": 3352},
    "b200": {"bf16": 4500, "fp8": 9000, "fp4": 18000},
    "mi355x": {"bf16": 5033, "fp8": 10066},
}


@pytest.mark.parametrize("stem", sorted(SPARSE_TFLOPS))
def test_peaks_are_half_of_the_printed_sparse_ones(stem: str) -> None:
    for precision, sparse in SPARSE_TFLOPS[stem].items():
        assert getattr(GPUS[stem].datasheet.dense_tflops, precision) == pytest.approx(sparse / 2, rel=0.015)


def test_peaks_of_the_same_die_agree() -> None:
    same = [GPUS[s].datasheet.dense_tflops for s in ("h100-sxm", "h200-sxm", "gh200-96gb", "gh200-144gb")]
    assert same.count(same[0]) == len(same)
    assert same[0].bf16 == pytest.approx(989.4)
    # Already dense: halving it again would give 156, the TF32 rate.
    assert GPUS["a100-sxm-80gb"].datasheet.dense_tflops.bf16 == 312


@pytest.mark.parametrize(("stem", "package_tflops"), [("mi250", 362.1), ("mi250x", 383)])
def test_a_dual_die_package_is_two_gpus(stem: str, package_tflops: float) -> None:
    sheet = GPUS[stem].datasheet
    assert 2 * sheet.memory.marketed_gb == 128
    assert 2 * sheet.dense_tflops.fp16 == pytest.approx(package_tflops)
    assert 2 * sheet.tdp_w == 560
    assert sheet.node.gpus == 8
    assert sheet.note is not None and "package" in sheet.note


@EVERY
def test_a_link_joins_several_gpus_and_beats_pcie(stem: str) -> None:
    link, node = GPUS[stem].datasheet.link, GPUS[stem].datasheet.node
    if link is not None:
        assert link.domain_gpus >= 2
        assert link.gb_per_s_per_direction > node.pcie_gb_per_s_per_direction


@pytest.mark.parametrize(
    "stem",
    ["l40s", "l40", "l4", "a10", "a10g", "t4", "rtx-4090", "rtx-5090", "gh200-96gb"],
)
def test_cards_without_nvlink_have_no_link(stem: str) -> None:
    assert GPUS[stem].datasheet.link is None


@EVERY
def test_facts_say_where_they_come_from(stem: str) -> None:
    sheet = GPUS[stem].datasheet
    assert sheet.sources
    assert "from memory" in sheet.evidence  # no profile was checked in full, the evidence names what was not
    assert re.match(r"20\d\d", sheet.date)


@EVERY
def test_prices_are_dated_and_of_one_kind(stem: str) -> None:
    for price in GPUS[stem].prices:
        assert re.match(r"20\d\d", price.date)
        assert (price.usd_per_gpu_hour is None) == (price.kind == "purchase")
        assert (price.purchase_usd is not None) == (price.kind == "purchase")
        if price.purchase_usd is not None:  # a whole server: its GPUs cost 10,000 to 60,000 dollars each
            assert 10_000 < price.purchase_usd / price.gpus < 60_000


def test_prices_are_per_gpu_not_per_server() -> None:
    # p5.48xlarge: 55.04 dollars an hour for eight GPUs, 6.88 each.
    (price,) = [p for p in GPUS["h100-sxm"].prices if p.sku == "p5.48xlarge"]
    assert price.usd_per_gpu_hour == pytest.approx(55.04 / 8)
    assert price.gpus == 8


# --- formats ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp32", 32),
        ("fp16", 16),
        ("bf16", 16),
        ("fp8", 8),
        ("fp8_block", 8 + 32 / (128 * 128)),
        ("int8", 8),
        ("int4", 4 + (16 + 4) / 128),
        ("nvfp4", 4 + 8 / 16),
        ("mxfp4", 4 + 8 / 32),
    ],
)
def test_mean_bits_of_a_value_with_its_scales(name: str, bits: float) -> None:
    assert FORMATS[name].bits == pytest.approx(bits, rel=1e-6)


def test_formats_multiply_only_where_hardware_can() -> None:
    assert FORMATS["int4"].compute == ()  # no current tensor core multiplies it: weight-only
    assert FORMATS["bf16"].compute == ("bf16", "fp16")  # Volta and Turing fall back to FP16
    assert FORMATS["nvfp4"].compute == FORMATS["mxfp4"].compute == ("fp4",)
    assert FORMATS["fp8"].compute == FORMATS["fp8_block"].compute == ("fp8",)
    assert all(entry.source for entry in FORMATS.values())
