"""The content of tables of measured kernels for each profile row: points to fit, or constants fitted by others.

The work of attention is counted as a step counts it. That of products follows from the shares of the peaks that the
tables state, which leaves out what experts read and write beside their weights (below a tenth of what they move).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sizing.calibration.kernel_tables import (
    DecodeFit,
    GemmFit,
    KernelFit,
    Key,
    MoeFit,
    MoePoint,
    PrefillFit,
    TableLine,
    Tables,
    key_of_line,
)
from sizing.model.attention import gqa
from sizing.specs.calibration import KeptKernels, KernelRules
from sizing.specs.gpu import CollectiveRow, DecodeAttentionRow, EfficiencyRow, MlaDecodeRow, PrefillAttentionRow
from sizing.specs.model import GqaAttention
from sizing.specs.units import GIGA, MEGA, MIB, MICRO, TERA

Array = NDArray[np.float64]
ExpertT = TypeVar("ExpertT", MoePoint, MoeFit)
Constants = Mapping[str, float | None]

CACHE_BYTES = {"fp8": 1.0}  # of one cached value; in any other precision it has 16 bits
SIXTEEN_BIT_BYTES = 2.0
PROMPTS = {name: int(name.removeprefix("ff_isl")) for name in PrefillFit.model_fields if name.startswith("ff_isl")}
# Names in a row of the columns of published constants; a value of a curve is `name@length`.
CONSTANTS = {
    "t0_us": "t0_us",
    "eff_compute": "compute",
    "eff_mem": "memory",
    "eff_compute_bf16peak": "compute",
    "pnorm": "p",
    **{column: f"flop_fraction@{length}" for column, length in PROMPTS.items()},
}
SAME = 0.005  # relative difference of constants that are rounded to three digits


def key_of(profile: str, row: EfficiencyRow) -> Key:
    """The key of a row of a profile."""
    precision = "" if isinstance(row, CollectiveRow) else row.precision
    key = Key(profile, row.operation, row.engine, precision)
    if isinstance(row, DecodeAttentionRow):
        return key._replace(head_dim=row.head_dim)
    if isinstance(row, PrefillAttentionRow):
        return key._replace(head_dim=row.head_dim, cache=row.cache_precision)
    if isinstance(row, MlaDecodeRow):
        return key._replace(q_heads=row.q_heads)
    if isinstance(row, CollectiveRow):
        return key._replace(gpus=row.gpus, backend=row.backend)
    return key


def why_kept(key: Key, rules: Iterable[KeptKernels]) -> str | None:
    """The reason why a row may not be refitted; None where it may."""
    for rule in rules:
        if (
            rule.operation in (None, key.operation)
            and rule.engine in (None, key.engine)
            and rule.precision in (None, key.precision)
            and rule.q_heads in (None, key.q_heads)
            and (rule.gpus is None or key.gpus in rule.gpus)
            and (rule.profiles is None or key.profile in rule.profiles)
        ):
            return rule.why
    return None


class KernelPoint(NamedTuple):
    """One measurement: seconds, work, and the size by which points are left out (rows, tokens, bytes of a message)."""

    seconds: float
    flops: float
    bytes: float
    size: float


class Summary(NamedTuple):
    """All points of one row, and the measured version."""

    version: str
    points: tuple[KernelPoint, ...]

    def column(self, name: str) -> Array:
        """One column of the points, shape (n,)."""
        return np.array([getattr(point, name) for point in self.points], dtype=float)


def summaries(tables: Tables, rules: KernelRules, versions: Mapping[Key, str]) -> dict[Key, Summary]:
    """The points of each row of a known version with enough points."""
    points: dict[Key, list[KernelPoint]] = defaultdict(list)
    for line, point in (*_products(tables, rules), *_experts(tables, rules), *_others(tables, rules)):
        key = key_of_line(line, rules)
        if key is not None:
            points[key].append(point)
    return {
        key: Summary(versions[key], tuple(found))
        for key, found in points.items()
        if key in versions and len(found) >= rules.least_points
    }


def _products(tables: Tables, rules: KernelRules) -> Iterator[tuple[TableLine, KernelPoint]]:
    peaks = {(fit.gpu, fit.framework, fit.dtype): fit for fit in tables.gemm_fit}
    for line in tables.gemm:
        fit = peaks.get((line.gpu, line.framework, line.dtype))
        if fit is None or line.weight_elems_bin not in rules.weights:
            continue
        seconds = line.lat_us_median * MICRO
        flops = line.flop_frac_p50 * fit.peak_tflops_dense * TERA * seconds
        yield line, KernelPoint(seconds, flops, line.bw_frac_p50 * fit.peak_bw_gbs * GIGA * seconds, line.m_bin_lo)


def _experts(tables: Tables, rules: KernelRules) -> Iterator[tuple[TableLine, KernelPoint]]:
    """Points of expert products. Their tables state no bandwidth; it comes from the other tables of the GPU."""
    stated: tuple[DecodeFit | GemmFit, ...] = (*tables.decode_fit, *tables.gemm_fit)
    bandwidths = {fit.gpu: fit.peak_bw_gbs for fit in stated}
    peaks = {(fit.gpu, fit.framework, fit.dtype): fit.peak_tflops_dense for fit in tables.moe_fit}
    for line in _of_one_routing(tables.moe, rules):
        tflops, gbs = peaks.get((line.gpu, line.framework, line.dtype)), bandwidths.get(line.gpu)
        if tflops is None or gbs is None:
            continue
        seconds = line.lat_us * MICRO
        flops, moved = line.flop_frac * tflops * TERA * seconds, line.weight_bw_frac * gbs * GIGA * seconds
        yield line, KernelPoint(seconds, flops, moved, line.num_tokens)


def _others(tables: Tables, rules: KernelRules) -> Iterator[tuple[TableLine, KernelPoint]]:
    """Points of attention and of collectives."""
    for read in tables.decode:
        yield read, KernelPoint(read.lat_us * MICRO, 0.0, read.kv_mb * MEGA, read.kv_len)
    for line in tables.prefill:
        mixer = GqaAttention(line.q_heads, line.kv_heads, line.head_dim)
        cached = CACHE_BYTES.get(rules.precisions.get(line.kv_dtype, ""), SIXTEEN_BIT_BYTES)
        work = gqa.prefill(mixer, 1, cached, float(line.batch), float(line.isl), 0.0)
        yield line, KernelPoint(line.lat_us * MICRO, float(work.flops), float(work.bytes), line.isl)
    for message in tables.collectives:
        if message.bytes <= rules.most_message_mib * MIB:
            yield message, KernelPoint(message.us * MICRO, 0.0, message.bytes, message.bytes)


def _of_one_routing(lines: list[ExpertT], rules: KernelRules) -> list[ExpertT]:
    """The lines of the first routing of the rules that a table has."""
    stated = {line.routing for line in lines}
    routing = next((routing for routing in rules.routings if routing in stated), None)
    return [line for line in lines if line.routing == routing]


class Published(NamedTuple):
    """Constants by their names in a row, those of a curve as `name@length`; None where measurements did not determine
    one.

    `peak_flops` and `bytes_per_s` are what the shares are of, 0 where that is not stated.
    """

    version: str
    values: Constants
    peak_flops: float = 0.0
    bytes_per_s: float = 0.0


def published(tables: Tables, rules: KernelRules) -> dict[Key, Published]:
    """Published constants of all rows named in the rules; for experts those of one routing."""
    fits: tuple[KernelFit, ...] = (
        *tables.gemm_fit,
        *_of_one_routing(tables.moe_fit, rules),
        *tables.decode_fit,
        *tables.prefill_fit,
        *tables.mla_fit,
    )
    found = {}
    for fit in fits:
        values = {CONSTANTS[column]: getattr(fit, column) for column in CONSTANTS if column in type(fit).model_fields}
        peak_flops, bytes_per_s = getattr(fit, "peak_tflops_dense", 0.0) * TERA, getattr(fit, "peak_bw_gbs", 0.0) * GIGA
        if (key := key_of_line(fit, rules)) is not None:
            found[key] = Published(fit.version, values, peak_flops, bytes_per_s)
    return found


def versions(tables: Tables, rules: KernelRules) -> dict[Key, str]:
    """The measured version of each row."""
    found = {key: fit.version for key, fit in published(tables, rules).items()}
    keys = ((key_of_line(fit, rules), fit.version) for fit in tables.collective_fit)
    return {**found, **{key: version for key, version in keys if key is not None}}


def restated(fit: Published, peak_flops: float, bytes_per_s: float) -> Constants:
    """Published constants with their shares stated against other peaks."""
    scale = {
        "memory": fit.bytes_per_s / bytes_per_s if fit.bytes_per_s else 1.0,
        **dict.fromkeys(("compute", "flop_fraction"), fit.peak_flops / peak_flops if fit.peak_flops else 1.0),
    }
    return {
        name: None if value is None else value * scale.get(name.partition("@")[0], 1.0)
        for name, value in fit.values.items()
    }


def differences(row: EfficiencyRow, constants: Constants) -> list[str]:
    """Write each constant that differs from a row's: its name, the row's value, and the published value."""
    along = row.tokens if isinstance(row, PrefillAttentionRow) else ()
    found = []
    for name, value in constants.items():
        field, _, length = name.partition("@")
        if length and int(length) not in along:
            continue
        stated = getattr(row, field)
        own = stated[along.index(int(length))] if length else stated
        if (own is None or value is None) and own is value:
            continue
        if own is None or value is None or abs(own - value) > SAME * value:
            found.append(f"{name} {_shown(own)}, published {_shown(value)}")
    return found


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
