"""What tells rows of efficiency apart, what tables of kernels call them, and which of them no refit touches.

Tables of kernels turned into points, by the row of a GPU profile that times them.

The work of attention is counted as a step counts it; that of products follows from the shares of the peaks that the
tables state, which leaves out what experts read and write beside their weights (below a tenth of what they move).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.calibration.kernel_tables import Tables
from sizing.model.attention import gqa
from sizing.specs.calibration import KeptKernels, KernelRules
from sizing.specs.gpu import CollectiveRow, DecodeAttentionRow, EfficiencyRow, MlaDecodeRow, PrefillAttentionRow
from sizing.specs.model import GqaAttention
from sizing.specs.units import GIGA, MEGA, MIB, MICRO, TERA


class Key(NamedTuple):
    """The profile's name, and of a row what the choice among rows goes by."""

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
        """Return the key in words, but for the profile."""
        parts = [self.operation, self.engine, self.precision]
        parts += [f"head {self.head_dim}"] if self.head_dim else []
        parts += [f"{self.cache} cache"] if self.cache else []
        parts += [f"{self.q_heads} heads"] if self.q_heads else []
        parts += [f"{self.gpus} GPUs"] if self.gpus else []
        return " ".join(part for part in parts if part)


def key_of(profile: str, row: EfficiencyRow) -> Key:
    """Return the key of a row of a profile."""
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
    """Return why no refit touches a row, None where one may."""
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


class Names:
    """The tables' names turned into the profiles'. Without a name of its own a line has no key, and is passed."""

    def __init__(self, rules: KernelRules) -> None:
        """Keep the rules that hold the names."""
        self._rules = rules

    def computed(self, gpu: str, framework: str, operation: str, precision: str) -> Key | None:
        """Return the key of a product or of attention."""
        rules = self._rules
        if gpu not in rules.gpus or framework not in rules.engines or precision not in rules.precisions:
            return None
        return Key(rules.gpus[gpu], operation, rules.engines[framework], rules.precisions[precision])

    def prefill(self, gpu: str, framework: str, precision: str, cache: str, head_dim: int) -> Key | None:
        """Return the key of causal attention."""
        key = self.computed(gpu, framework, "prefill_attention", precision)
        if key is None or cache not in self._rules.precisions:
            return None
        return key._replace(cache=self._rules.precisions[cache], head_dim=head_dim)

    def collective(self, gpu: str, source: str, operation: str, backend: str, gpus: int) -> Key | None:
        """Return the key of a collective."""
        rules = self._rules
        if gpu not in rules.gpus or source not in rules.engines:
            return None
        if operation not in rules.operations or backend not in rules.backends:
            return None
        key = Key(rules.gpus[gpu], rules.operations[operation], rules.engines[source])
        return key._replace(gpus=gpus, backend=rules.backends[backend])

    def routing(self, held: Iterable[str]) -> str | None:
        """Return the first routing of the rules that a table holds, None where it holds none."""
        found = set(held)
        return next((routing for routing in self._rules.routings if routing in found), None)


Array = NDArray[np.float64]

CACHE_BYTES = {"fp8": 1.0}  # of one cached value; in any other precision it has 16 bits
SIXTEEN_BIT_BYTES = 2.0


class KernelPoint(NamedTuple):
    """One measurement: seconds, work, and the size that points are left out by (rows, tokens, bytes of a message)."""

    seconds: float
    flops: float
    bytes: float
    size: float


class Summary(NamedTuple):
    """All points of one row, and the version that was measured."""

    version: str
    points: tuple[KernelPoint, ...]

    def column(self, name: str) -> Array:
        """Return one column of the points, shape (n,)."""
        return np.array([getattr(point, name) for point in self.points], dtype=float)


def summaries(tables: Tables, rules: KernelRules, versions: Mapping[Key, str]) -> dict[Key, Summary]:
    """Return the points of each row of a known version that has enough of them."""
    names = Names(rules)
    points: dict[Key, list[KernelPoint]] = defaultdict(list)
    _add_products(tables, rules, names, points)
    _add_experts(tables, names, points)
    _add_attention(tables, names, points)
    for line in tables.collectives:
        key = names.collective(line.gpu, line.source, line.op, line.backend, line.n_gpus)
        if key is not None and line.bytes <= rules.most_message_mib * MIB:
            points[key].append(KernelPoint(line.us * MICRO, 0.0, line.bytes, line.bytes))
    return {
        key: Summary(versions[key], tuple(found))
        for key, found in points.items()
        if key in versions and len(found) >= rules.least_points
    }


def _add_products(tables: Tables, rules: KernelRules, names: Names, points: dict[Key, list[KernelPoint]]) -> None:
    peaks = {(fit.gpu, fit.framework, fit.dtype): fit for fit in tables.gemm_fit}
    for line in tables.gemm:
        key = names.computed(line.gpu, line.framework, "gemm", line.dtype)
        fit = peaks.get((line.gpu, line.framework, line.dtype))
        if key is None or fit is None or line.weight_elems_bin not in rules.weights:
            continue
        seconds = line.lat_us_median * MICRO
        flops = line.flop_frac_p50 * fit.peak_tflops_dense * TERA * seconds
        points[key].append(
            KernelPoint(seconds, flops, line.bw_frac_p50 * fit.peak_bw_gbs * GIGA * seconds, line.m_bin_lo)
        )


def _add_experts(tables: Tables, names: Names, points: dict[Key, list[KernelPoint]]) -> None:
    """Add expert products. Their tables state no bandwidth: it is that which others of the GPU state."""
    bandwidths = {fit.gpu: fit.peak_bw_gbs for fit in tables.decode_fit}
    bandwidths |= {fit.gpu: fit.peak_bw_gbs for fit in tables.gemm_fit}
    peaks = {(fit.gpu, fit.framework, fit.dtype): fit.peak_tflops_dense for fit in tables.moe_fit}
    routing = names.routing(line.routing for line in tables.moe)
    for line in tables.moe:
        key = names.computed(line.gpu, line.framework, "moe", line.dtype)
        tflops, gbs = peaks.get((line.gpu, line.framework, line.dtype)), bandwidths.get(line.gpu)
        if key is None or tflops is None or gbs is None or line.routing != routing:
            continue
        seconds = line.lat_us * MICRO
        flops, moved = line.flop_frac * tflops * TERA * seconds, line.weight_bw_frac * gbs * GIGA * seconds
        points[key].append(KernelPoint(seconds, flops, moved, line.num_tokens))


def _add_attention(tables: Tables, names: Names, points: dict[Key, list[KernelPoint]]) -> None:
    for read in tables.decode:
        key = names.computed(read.gpu, read.framework, "decode_attention", read.kv_dtype)
        if key is not None:
            point = KernelPoint(read.lat_us * MICRO, 0.0, read.kv_mb * MEGA, read.kv_len)
            points[key._replace(head_dim=read.head_dim)].append(point)
    for line in tables.prefill:
        key = names.prefill(line.gpu, line.framework, line.attn_dtype, line.kv_dtype, line.head_dim)
        if key is not None:
            mixer = GqaAttention(line.q_heads, line.kv_heads, line.head_dim)
            cached = CACHE_BYTES.get(key.cache, SIXTEEN_BIT_BYTES)
            work = gqa.prefill(mixer, 1, cached, float(line.batch), float(line.isl), 0.0)
            points[key].append(KernelPoint(line.lat_us * MICRO, float(work.flops), float(work.bytes), line.isl))
