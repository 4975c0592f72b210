"""Names: what people write finds the right profile, and nothing else does."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import yaml

from sizing.catalog import models, profiles, shelf, workloads
from sizing.catalog.files import data_folder, read_yaml
from sizing.catalog.shelf import CatalogEntry, Shelf, by_stem, entries, match, matched_from
from sizing.specs.data import Formats
from sizing.specs.errors import InputError
from sizing.specs.gpu import AssumedEfficiencies, Assumptions, Gpu
from sizing.specs.model import ModelFile

SHELF = Shelf(Gpu, "GPU", "hardware_profiles", "gpus", "llmsize gpus")
A100_40 = CatalogEntry("a100-sxm-40gb", Path("a"), "A100 SXM 40GB", ("A100 40GB",))
A100_80 = CatalogEntry("a100-sxm-80gb", Path("b"), "A100 SXM 80GB", ("A100 80GB", "NVIDIA A100-SXM4-80GB"))
H100 = CatalogEntry("h100-sxm", Path("c"), "H100 SXM 80GB", ("H100", "NVIDIA H100 80GB HBM3"))
H100_NVL = CatalogEntry("h100-nvl", Path("d"), "H100 NVL", ())
L40S = CatalogEntry("l40s", Path("e"), "L40S", ())
L4 = CatalogEntry("l4", Path("f"), "L4", ())
KNOWN = (A100_40, A100_80, H100, H100_NVL, L40S, L4)


@pytest.mark.parametrize(
    ("query", "entry"),
    [
        ("h100-sxm", H100),
        ("H100 SXM", H100),
        ("h100_sxm", H100),
        ("H100SXM", H100),
        (" h100 ", H100),  # exact as an alias, though h100-nvl begins with it too
        ("nvidia h100 80gb hbm3", H100),
        ("h100n", H100_NVL),  # the beginning of one name only
        ("L4", L4),  # exact, though l40s begins with it
        ("L40", L40S),
        ("a100-80gb", A100_80),
        ("nvidia-a100-sxm4-80gb", A100_80),
    ],
)
def test_a_name_finds_its_entry(query: str, entry: CatalogEntry) -> None:
    assert match(query, KNOWN, SHELF) is entry


@pytest.mark.parametrize(
    ("query", "listed"),
    [
        ("A100", "a100-sxm-40gb, a100-sxm-80gb"),  # "A100 40GB" and "A100 80GB" are equally near: no guess
        ("nvidia", "a100-sxm-80gb, h100-sxm"),
        ("h10", "h100-sxm, h100-nvl; did you mean h100-sxm?"),  # by its alias H100
        ("a10", "a100-sxm-40gb, a100-sxm-80gb"),
    ],
)
def test_the_beginning_of_several_names_lists_them(query: str, listed: str) -> None:
    with pytest.raises(InputError) as caught:
        match(query, KNOWN, SHELF)
    assert str(caught.value) == f"GPU {query!r} fits several; allowed: {listed}"


def test_fewer_than_three_letters_are_no_beginning() -> None:
    """Of two letters `l4` would be the beginning of the L40S too; one is an entry's whole name, or nothing."""
    for query in ("l", "h1"):
        with pytest.raises(InputError, match=f"unknown GPU '{query}'; allowed: a name that `llmsize gpus` shows"):
            match(query, KNOWN, SHELF)
    assert match("l4", KNOWN, SHELF) is L4


def test_an_alias_of_two_entries_is_ambiguous() -> None:
    twin = CatalogEntry("h100-twin", Path("t"), "Twin", ("H100",))
    with pytest.raises(InputError, match="fits several; allowed: h100-sxm, h100-twin"):
        match("H100", (*KNOWN, twin), SHELF)


def test_an_unknown_name_gets_the_nearest_and_the_command() -> None:
    with pytest.raises(InputError) as caught:
        match("h100-sxn", KNOWN, SHELF)
    assert str(caught.value) == (
        "unknown GPU 'h100-sxn'; allowed: a name that `llmsize gpus` shows, or the path of a file; "
        "did you mean h100-sxm?"
    )


@pytest.mark.parametrize("query", ["", " ", "-", "zzz", "../secrets", "_assumed", "h100\0", "x" * 300])
def test_what_is_no_name_is_unknown(query: str) -> None:
    assert by_stem(query, SHELF) is None
    with pytest.raises(InputError, match="unknown GPU"):
        match(query, KNOWN, SHELF)


def test_dots_count_where_the_shelf_says_so() -> None:
    entry = CatalogEntry("llama-3.1", Path("m"), "Llama-3.1", ())
    strict = Shelf(ModelFile, "model", "workloads", "models", "", dots_matter=True)
    assert match("llama31", (entry,), SHELF) is entry
    with pytest.raises(InputError):
        match("llama31", (entry,), strict)


def test_what_matched_is_told_only_where_it_differs() -> None:
    assert matched_from("H100 SXM", H100) is None
    assert matched_from("h100 sxm 80gb", H100) is None
    assert matched_from("H100", H100) == "H100"


SHELVES = [profiles.GPUS, profiles.ENGINES, models.SHELF, workloads.SHELF]


@pytest.mark.parametrize("shelf", SHELVES, ids=lambda shelf: shelf.label)
def test_head_lines_agree_with_the_whole_file(shelf: Shelf) -> None:
    for entry in entries(shelf):
        data = read_yaml(entry.path).data
        assert (entry.name, list(entry.aliases)) == (data["name"], data.get("aliases", []))


@pytest.mark.parametrize("shelf", SHELVES, ids=lambda shelf: shelf.label)
def test_no_two_files_share_a_name(shelf: Shelf) -> None:
    owners: dict[str, set[str]] = {}
    for entry in entries(shelf):
        for name in entry.names:
            owners.setdefault(shelf.key(name), set()).add(entry.id)
    assert {name: who for name, who in owners.items() if len(who) > 1} == {}


@pytest.mark.parametrize("shelf", SHELVES, ids=lambda shelf: shelf.label)
def test_every_file_is_found_by_every_name_it_has(shelf: Shelf) -> None:
    known = entries(shelf)
    assert all(match(name, known, shelf) == entry for entry in known for name in entry.names)


@pytest.mark.parametrize("kind", ["hardware_profiles", "workloads"])
def test_our_reading_of_yaml_differs_from_the_common_one_in_dates_and_exponents_only(kind: str) -> None:
    paths = sorted(data_folder(kind).rglob("*.yaml"))
    assert paths
    for path in paths:
        common = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        assert _same(read_yaml(path).data, common), path


def _same(ours: object, common: object) -> bool:
    if isinstance(ours, dict) and isinstance(common, dict):
        return list(ours) == list(map(str, common)) and all(map(_same, ours.values(), common.values()))
    if isinstance(ours, list) and isinstance(common, list):
        return len(ours) == len(common) and all(map(_same, ours, common))
    if isinstance(common, datetime.date):
        return ours == common.isoformat()
    if isinstance(ours, float) and isinstance(common, str):
        return ours == float(common)
    return type(ours) is type(common) and ours == common


def test_gpus_are_loaded_by_name_alias_and_path(tmp_path: Path) -> None:
    by_name = profiles.load_gpu("h100-sxm")
    by_alias = profiles.load_gpu("NVIDIA H100 80GB HBM3")
    own = tmp_path / "my-h100.yaml"
    own.write_text(by_name.path.read_text().replace("name: H100 SXM 80GB", "name: Mine"))
    by_path = profiles.load_gpu(str(own))
    assert by_name.id == by_alias.id == "h100-sxm"
    assert by_name.spec == by_alias.spec
    assert (by_name.matched_from, by_alias.matched_from) == (None, "NVIDIA H100 80GB HBM3")
    assert (by_path.id, by_path.spec.name, by_path.path) == ("my-h100", "Mine", own)
    assert by_path.spec.datasheet == by_name.spec.datasheet


OWN_GPU = """\
name: Mine
vendor: NVIDIA
architecture: hopper
compute_capability: "9.0"
datasheet:
  memory: {marketed_gb: 80, cuda_visible_gib: 79.2, nvidia_smi_mib: 81559, bandwidth_gb_per_s: 3350, type: HBM3}
  dense_tflops: {fp32: 67, tf32: 495, fp16: 990, bf16: 990, fp8: 1979, int8: 1979}
  link: {kind: NVLink4, gb_per_s_per_direction: 450, domain_gpus: 8}
  node: {gpus: 8, pcie_gb_per_s_per_direction: 64, inter_node_gbit_per_s_per_gpu: 400}
  tdp_w: 700
  evidence: none
  sources: [none]
  date: "2026"
prices:
  - {provider: P, sku: S, kind: on-demand, usd_per_gpu_hour: 3.5, gpus: 1, date: "2026", source: none}
"""
OWN_ROWS = """efficiency:
  - {operation: gemm, engine: any, version: "1", precision: bf16, t0_us: 4, compute: 0.8, memory: 0.8, p: 3, source: s, date: d}
  - {operation: decode_attention, engine: any, version: "1", precision: bf16, head_dim: 128, t0_us: 4, memory: 0.8, source: s, date: d}
  - {operation: prefill_attention, engine: any, version: "1", precision: bf16, cache_precision: bf16, head_dim: 128, t0_us: 4,
     compute: 0.6, tokens: [128, 1024], flop_fraction: [0.1, 0.5], source: s, date: d}
"""


def own_gpu(tmp_path: Path, old: str, new: str, more: str = "") -> str:
    assert old in OWN_GPU
    path = tmp_path / "mine.yaml"
    path.write_text(OWN_GPU.replace(old, new) + more)
    return str(path)


def test_a_plain_profile_of_ones_own_is_read(tmp_path: Path) -> None:
    assert profiles.load_gpu(own_gpu(tmp_path, "3350", "3350")).spec.datasheet.memory.bandwidth_gb_per_s == 3350


# (what a slip turns a value into, the field that the fault names, words of the message)
SLIPS = {
    "TB/s": ("gb_per_s: 3350", "gb_per_s: 3.35", "datasheet.memory.bandwidth_gb_per_s", "less looks like TB/s"),
    "MB/s": ("gb_per_s: 3350", "gb_per_s: 3350000", "datasheet.memory.bandwidth_gb_per_s", "from 10 to 100,000"),
    "FLOPS": ("fp8: 1979", "fp8: 1.979e15", "datasheet.dense_tflops.fp8", "from 0.1 to 1,000,000"),
    "no peak": ("fp32: 67", "fp32: 0.05", "datasheet.dense_tflops.fp32", "from 0.1 to 1,000,000"),
    "MB": ("marketed_gb: 80", "marketed_gb: 80000", "datasheet.memory.marketed_gb", "from 1 to 10,000"),
    "bytes": ("gib: 79.2", "gib: 85e9", "datasheet.memory.cuda_visible_gib", "from 1 to 10,000"),
    "GiB": ("mib: 81559", "mib: 79.6", "datasheet.memory.nvidia_smi_mib", "in MiB"),
    "GB as GiB": ("gib: 79.2", "gib: 85", "datasheet.memory", "cuda_visible_gib 85 is more than the marketed size, 80"),
    "smi": ("mib: 81559", "mib: 85899", "datasheet.memory", "nvidia_smi_mib 85899 is more than the marketed size, 80"),
    "kW": ("tdp_w: 700", "tdp_w: 0.7", "datasheet.tdp_w", "watts, from 10 to 5,000"),
    "link": ("direction: 450", "direction: 0.45", "datasheet.link.gb_per_s_per_direction", "from 1 to 10,000"),
    "PCIe": ("direction: 64", "direction: 64e9", "datasheet.node.pcie_gb_per_s_per_direction", "from 0.5 to 1,000"),
    "network": ("gpu: 400", "gpu: 0.4", "datasheet.node.inter_node_gbit_per_s_per_gpu", "Gbit/s"),
    "cents": ("hour: 3.5", "hour: 3500", "prices[0].usd_per_gpu_hour", "from 0.001 to 1,000"),
    "fp8 below": ("fp8: 1979", "fp8: 495", "datasheet.dense_tflops", "fp8 495 is below fp16 990"),
    "tf32 above": ("tf32: 495", "tf32: 1500", "datasheet.dense_tflops", "fp16 990 is below tf32 1500"),
    "fp4 below": ("int8: 1979", "fp4: 1000", "datasheet.dense_tflops", "fp4 1000 is below fp8 1979"),
    "fp16 slow": ("bf16: 990", "bf16: 3961", "datasheet.dense_tflops", "bf16 3961 is more than 4 times fp16 990"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_value_in_another_unit_is_refused_at_its_line(tmp_path: Path, slip: str) -> None:
    old, new, field, words = SLIPS[slip]
    with pytest.raises(InputError) as caught:
        profiles.load_gpu(own_gpu(tmp_path, old, new))
    (fault,) = caught.value.faults
    line = next(number for number, text in enumerate(OWN_GPU.splitlines(), 1) if old in text)
    assert (fault.field, fault.line) == (field, line)
    assert words in fault.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gib: 79.2", "gib: 80.8"),  # 1 % above the marketed 80: rounding
        ("mib: 81559", "mib: 82739"),  # 80.8 GiB
        ("gb_per_s: 3350", "gb_per_s: 10"),
        ("bf16: 990", "bf16: 3960"),  # 4 x 990
        ("fp8: 1979", "fp8: 990"),  # a card whose FP8 is no faster
        ("int8: 1979", "int8: 150"),  # cut down on purpose
    ],
)
def test_the_bounds_themselves_are_allowed(tmp_path: Path, old: str, new: str) -> None:
    assert profiles.load_gpu(own_gpu(tmp_path, old, new)).id == "mine"


def test_an_unknown_architecture_is_refused_whatever_rows_a_profile_has(tmp_path: Path) -> None:
    """Measured kernels, settings and ranges are known by architecture: a name of nothing would be another GPU, in silence."""
    with pytest.raises(InputError) as caught:
        profiles.load_gpu(own_gpu(tmp_path, "hopper", "hoper"))
    (fault,) = caught.value.faults
    assert (fault.line, fault.field, fault.nearest) == (3, "architecture", "hopper")
    assert "ampere" in str(fault.allowed) and "its nearest relative" in str(fault.allowed)
    with pytest.raises(InputError, match="unknown architecture 'mine'"):
        profiles.load_gpu(own_gpu(tmp_path, "hopper", "mine", OWN_ROWS))
    assert profiles.load_gpu(own_gpu(tmp_path, "hopper", "ampere", OWN_ROWS)).spec.architecture == "ampere"


def test_an_architecture_is_of_its_vendor(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vendor: hopper is of NVIDIA, not of 'nvidia'; allowed: NVIDIA"):
        profiles.load_gpu(own_gpu(tmp_path, "NVIDIA", "nvidia"))


def test_faults_of_a_users_gpu_name_their_line(tmp_path: Path) -> None:
    own = tmp_path / "my.yaml"
    text = profiles.load_gpu("h100-sxm").path.read_text()
    line = next(number for number, row in enumerate(text.splitlines(), 1) if row.strip().startswith("tdp_w:"))
    own.write_text(text.replace("tdp_w:", "tdp_watt:"))
    with pytest.raises(InputError) as caught:
        profiles.load_gpu(str(own))
    unknown = next(fault for fault in caught.value.faults if fault.message == "unknown key")
    assert (unknown.line, unknown.field, unknown.nearest) == (line, "datasheet.tdp_watt", "tdp_w")


@pytest.mark.parametrize(
    ("text", "engine", "version"),
    [("vllm", "vllm", None), ("vLLM:0.19.0", "vllm", "0.19.0"), ("NIM", "tensorrt-llm", None)],
)
def test_engines_are_loaded_with_or_without_a_version(text: str, engine: str, version: str | None) -> None:
    found, given = profiles.load_engine(text)
    assert (found.id, given) == (engine, version)


def test_an_engine_by_path_keeps_its_version(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(profiles.load_engine("vllm")[0].path.read_text())
    found, version = profiles.load_engine(f"{own}:0.19")
    assert (found.id, version) == ("mine", "0.19")


@pytest.mark.parametrize("text", ["vllm:", "", ":0.19"])
def test_an_engine_without_name_or_version_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        profiles.load_engine(text)


def test_every_profile_of_the_catalogue_loads() -> None:
    for name in profiles.GPUS.ids:
        assert profiles.load_gpu(name).id == name
    for name in profiles.ENGINES.ids:
        assert profiles.load_engine(name)[0].id == name
    for name in models.SHELF.ids:
        assert models.load_model(name).id == name
    assert shelf.only(Assumptions).small_kernels
    assert shelf.only(AssumedEfficiencies).architectures
    assert "bf16" in shelf.only(Formats).formats
    assert "_assumed" not in profiles.GPUS.ids
