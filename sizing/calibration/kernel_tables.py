"""Tables of measured kernels, a folder of CSV files: each line a typed row, a fault for each file that is wrong.

Times are in microseconds. Shares (`flop_frac`, `bw_frac`) are of the peaks that the tables of fits state.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sizing.catalog.files import read_text
from sizing.catalog.paths import is_folder
from sizing.specs.errors import Fault, InputError

Name = Annotated[str, Field(min_length=1)]
Number = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(gt=0)]
Blank = Annotated[Number | None, BeforeValidator(lambda text: text or None)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    gpu: Name


class _Fit(_Line):
    """What every published fit says of itself."""

    framework: Name
    version: Name
    n_points: Count
    t0_us: Share
    median_abs_err: Share
    p90_abs_err: Share


class GemmPoint(_Line):
    """Medians over products of one range of rows M and of weights."""

    framework: Name
    dtype: Name
    m_bin_lo: Count
    weight_elems_bin: Name
    lat_us_median: Number
    flop_frac_p50: Share
    bw_frac_p50: Share


class GemmFit(_Fit):
    """The rounded roofline of dense products, and the peaks that its shares are of."""

    dtype: Name
    peak_tflops_dense: Number
    peak_bw_gbs: Number
    eff_compute: Number
    eff_mem: Number
    pnorm: Number


class MoePoint(_Line):
    """Fused expert products of one model's shape for a number of tokens."""

    framework: Name
    dtype: Name
    routing: Name
    num_tokens: Count
    lat_us: Number
    flop_frac: Share
    weight_bw_frac: Share


class MoeFit(_Fit):
    """The rounded roofline of expert products."""

    dtype: Name
    routing: Name
    peak_tflops_dense: Number
    eff_compute: Number
    eff_mem: Number
    pnorm: Number


class DecodePoint(_Line):
    """Decode attention of a batch whose sequences have `kv_len` tokens in the cache."""

    framework: Name
    kv_dtype: Name
    head_dim: Count
    q_heads: Count
    kv_heads: Count
    batch: Count
    kv_len: Count
    lat_us: Number
    kv_mb: Number


class DecodeFit(_Fit):
    """Launch and share of the bandwidth of decode attention."""

    kv_dtype: Name
    head_dim: Count
    peak_bw_gbs: Number
    eff_mem: Number


class PrefillPoint(_Line):
    """Causal attention of a batch of prompts of `isl` tokens."""

    framework: Name
    attn_dtype: Name
    kv_dtype: Name
    head_dim: Count
    q_heads: Count
    kv_heads: Count
    batch: Count
    isl: Count
    lat_us: Number


class PrefillFit(_Fit):
    """Launch of causal attention, and its share of the peak (launch included) at seven prompt lengths."""

    attn_dtype: Name
    kv_dtype: Name
    head_dim: Count
    peak_tflops_dense: Number
    eff_compute: Number
    ff_isl128: Blank
    ff_isl512: Blank
    ff_isl1024: Blank
    ff_isl2048: Blank
    ff_isl4096: Blank
    ff_isl8192: Blank
    ff_isl16384: Blank


class MlaFit(_Fit):
    """Decode attention over a latent cache; a share that the measurements did not identify is blank."""

    kv_dtype: Name
    q_heads_local: Count
    eff_mem: Blank
    eff_compute_bf16peak: Blank


class CollectivePoint(_Line):
    """One collective of a message."""

    source: Name
    backend: Name
    op: Name
    n_gpus: Count
    bytes: Number
    us: Number


class CollectiveFit(_Line):
    """The version of what ran a collective."""

    source: Name
    version: Name
    backend: Name
    op: Name
    n_gpus: Count


class Tables(NamedTuple):
    """All tables of a folder."""

    gemm: list[GemmPoint]
    gemm_fit: list[GemmFit]
    moe: list[MoePoint]
    moe_fit: list[MoeFit]
    decode: list[DecodePoint]
    decode_fit: list[DecodeFit]
    prefill: list[PrefillPoint]
    prefill_fit: list[PrefillFit]
    mla_fit: list[MlaFit]
    collectives: list[CollectivePoint]
    collective_fit: list[CollectiveFit]


FILES: dict[str, tuple[str, type[_Line]]] = {
    "gemm": ("aic_gemm_by_m.csv", GemmPoint),
    "gemm_fit": ("aic_gemm_fit.csv", GemmFit),
    "moe": ("aic_moe.csv", MoePoint),
    "moe_fit": ("aic_moe_fit.csv", MoeFit),
    "decode": ("aic_decode_attention.csv", DecodePoint),
    "decode_fit": ("aic_decode_attention_fit.csv", DecodeFit),
    "prefill": ("aic_prefill_attention.csv", PrefillPoint),
    "prefill_fit": ("aic_prefill_attention_fit.csv", PrefillFit),
    "mla_fit": ("aic_mla_decode_fit.csv", MlaFit),
    "collectives": ("aic_comm.csv", CollectivePoint),
    "collective_fit": ("aic_comm_fit.csv", CollectiveFit),
}

# Columns of names, and where the rules of a calibration say what those are called.
NAMED = {
    "gpu": "gpus",
    "framework": "engines",
    "source": "engines",
    "dtype": "precisions",
    "kv_dtype": "precisions",
    "attn_dtype": "precisions",
    "op": "operations",
    "backend": "backends",
}

LineT = TypeVar("LineT", bound=_Line)


def load_tables(folder: Path) -> Tables:
    """Return the tables of a folder. Raises InputError with one fault for each file that is missing or wrong."""
    if not is_folder(folder):
        raise InputError(Fault("is no folder of kernel tables", file=str(folder)))
    found: dict[str, list[_Line]] = {}
    faults: list[Fault] = []
    for table, (name, kind) in FILES.items():
        try:
            found[table] = read_lines(folder / name, kind)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return Tables(**found)  # type: ignore[arg-type]


def names_in(tables: Tables) -> dict[str, set[str]]:
    """Return the names that the tables hold, by the rule that says what they are called."""
    found: dict[str, set[str]] = {rule: set() for rule in NAMED.values()}
    for table in tables:
        columns = [column for column in NAMED if column in type(table[0]).model_fields]
        for column in columns:
            found[NAMED[column]] |= {getattr(line, column) for line in table}
    return found


def read_lines(path: Path, kind: type[LineT]) -> list[LineT]:
    """Return the lines of a file. Raises InputError with its first fault: unreadable, columns missing, a wrong cell."""
    file = str(path)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    lines = []
    try:
        missing = [name for name in kind.model_fields if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(Fault(f"has no column {', '.join(missing)}", file=file, line=1))
        for cells in reader:
            lines.append(kind.model_validate(cells))
    except csv.Error as error:
        raise InputError(Fault(f"is not valid CSV: {error}", file, reader.line_num)) from None
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{first['input']!r}: {first['msg']}"
        raise InputError(Fault(message, file, reader.line_num, field=str(first["loc"][0]))) from None
    if not lines:
        raise InputError(Fault("holds no rows", file=file))
    return lines
