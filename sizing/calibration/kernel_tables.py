"""Tables of measured kernels, a folder of CSV files: each line is a typed row, assigned to a row of a GPU profile.

Times are in microseconds. Shares (`flop_frac`, `bw_frac`) are of the peaks that the tables of fits state.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sizing.catalog.files import is_folder, read_text
from sizing.specs.calibration import KernelRules
from sizing.specs.errors import Fault, InputError

Name = Annotated[str, Field(min_length=1)]
Number = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(gt=0)]
Blank = Annotated[Number | None, BeforeValidator(lambda text: text or None)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    gpu: Name


class _Kernel(_Line):
    """A product or attention, `OPERATION` in the profiles; the column `PRECISION` has its format."""

    OPERATION: ClassVar[str]
    PRECISION: ClassVar[str]

    framework: Name


class _Fit(_Kernel):
    """The columns of every published fit."""

    version: Name
    n_points: Count
    t0_us: Share
    median_abs_err: Share
    p90_abs_err: Share


class _Roofline(_Fit):
    """The rounded roofline of products, and the peak that its share of operations refers to."""

    peak_tflops_dense: Number
    eff_compute: Number
    eff_mem: Number
    pnorm: Number


class _Gemm(_Kernel):
    OPERATION, PRECISION = "gemm", "dtype"

    dtype: Name


class GemmPoint(_Gemm):
    """Medians over products of one range of rows M and of weights."""

    m_bin_lo: Count
    weight_elems_bin: Name
    lat_us_median: Number
    flop_frac_p50: Share
    bw_frac_p50: Share


class GemmFit(_Gemm, _Roofline):
    """Dense products, and the bandwidth that their share of bytes refers to."""

    peak_bw_gbs: Number


class _Moe(_Kernel):
    OPERATION, PRECISION = "moe", "dtype"

    dtype: Name
    routing: Name


class MoePoint(_Moe):
    """Fused expert products of one model's shape for a number of tokens."""

    num_tokens: Count
    lat_us: Number
    flop_frac: Share
    weight_bw_frac: Share


class MoeFit(_Moe, _Roofline):
    """Expert products."""


class _Decode(_Kernel):
    OPERATION, PRECISION = "decode_attention", "kv_dtype"

    kv_dtype: Name
    head_dim: Count


class DecodePoint(_Decode):
    """Decode attention of a batch of sequences with `kv_len` tokens in the cache."""

    q_heads: Count
    kv_heads: Count
    batch: Count
    kv_len: Count
    lat_us: Number
    kv_mb: Number


class DecodeFit(_Decode, _Fit):
    """Launch and share of the bandwidth of decode attention."""

    peak_bw_gbs: Number
    eff_mem: Number


class _Prefill(_Kernel):
    OPERATION, PRECISION = "prefill_attention", "attn_dtype"

    attn_dtype: Name
    kv_dtype: Name
    head_dim: Count


class PrefillPoint(_Prefill):
    """Causal attention of a batch of prompts of `isl` tokens."""

    q_heads: Count
    kv_heads: Count
    batch: Count
    isl: Count
    lat_us: Number


class PrefillFit(_Prefill, _Fit):
    """Launch of causal attention, and its share of the peak (launch included) at seven prompt lengths."""

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
    """Decode attention over a latent cache; a share that the measurements did not determine is blank."""

    OPERATION, PRECISION = "mla_decode", "kv_dtype"

    kv_dtype: Name
    q_heads_local: Count
    eff_mem: Blank
    eff_compute_bf16peak: Blank


class _Collective(_Line):
    source: Name
    backend: Name
    op: Name
    n_gpus: Count


class CollectivePoint(_Collective):
    """One collective of a message."""

    bytes: Number
    us: Number


class CollectiveFit(_Collective):
    """The version of a collective's library."""

    version: Name


KernelFit = GemmFit | MoeFit | DecodeFit | PrefillFit | MlaFit
TableLine = _Kernel | _Collective


class Key(NamedTuple):
    """The profile's name, and the fields that select a row."""

    profile: str
    operation: str
    engine: str
    precision: str = ""
    head_dim: int = 0
    cache: str = ""
    q_heads: int = 0
    gpus: int = 0
    backend: str = ""

    def __str__(self) -> str:
        """The key in words, without the profile."""
        parts = [self.operation, self.engine, self.precision]
        parts += [f"head {self.head_dim}"] if self.head_dim else []
        parts += [f"{self.cache} cache"] if self.cache else []
        parts += [f"{self.q_heads} heads"] if self.q_heads else []
        parts += [f"{self.gpus} GPUs"] if self.gpus else []
        return " ".join(part for part in parts if part)


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

# Columns of names, and the calibration rules that translate them.
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


def key_of_line(line: TableLine, rules: KernelRules) -> Key | None:
    """The profile row of a line; None where the rules lack one of the line's names, which skips the line."""
    try:
        profile = rules.gpus[line.gpu]
        if isinstance(line, _Collective):
            key = Key(profile, rules.operations[line.op], rules.engines[line.source])
            return key._replace(gpus=line.n_gpus, backend=rules.backends[line.backend])
        precision = rules.precisions[getattr(line, line.PRECISION)]
        key = Key(profile, line.OPERATION, rules.engines[line.framework], precision)
        if isinstance(line, _Decode):
            return key._replace(head_dim=line.head_dim)
        if isinstance(line, _Prefill):
            return key._replace(head_dim=line.head_dim, cache=rules.precisions[line.kv_dtype])
    except KeyError:
        return None
    return key._replace(q_heads=line.q_heads_local) if isinstance(line, MlaFit) else key


def load_tables(folder: Path) -> Tables:
    """The tables of a folder. Raises InputError with one fault for each file that is missing or wrong."""
    if not is_folder(folder):
        raise InputError("is no folder of kernel tables", file=str(folder))
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
    """The names in the tables, by the rule that translates them."""
    found: dict[str, set[str]] = {rule: set() for rule in NAMED.values()}
    for table in tables:
        columns = [column for column in NAMED if column in type(table[0]).model_fields]
        for column in columns:
            found[NAMED[column]] |= {getattr(line, column) for line in table}
    return found


def read_lines(path: Path, kind: type[LineT]) -> list[LineT]:
    """The lines of a file. Raises InputError with its first fault: unreadable, columns missing, a wrong cell."""
    file = str(path)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    lines = []
    try:
        missing = [name for name in kind.model_fields if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"has no column {', '.join(missing)}", file=file, line=1)
        for cells in reader:
            lines.append(kind.model_validate(cells))
    except csv.Error as error:
        raise InputError(f"is not valid CSV: {error}", file=file, line=reader.line_num) from None
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{first['input']!r}: {first['msg']}"
        raise InputError(message, file=file, line=reader.line_num, field=str(first["loc"][0])) from None
    if not lines:
        raise InputError("holds no rows", file=file)
    return lines
