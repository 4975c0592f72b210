"""Constants that others have fitted, where tables hold no points to fit: restated for a row, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sizing.calibration.kernel_points import Key, Names
from sizing.calibration.kernel_tables import PrefillFit, Tables
from sizing.specs.calibration import KernelRules
from sizing.specs.gpu import EfficiencyRow, PrefillAttentionRow
from sizing.specs.units import GIGA, TERA

Constants = Mapping[str, float | None]

PROMPTS = {name: int(name.removeprefix("ff_isl")) for name in PrefillFit.model_fields if name.startswith("ff_isl")}
SAME = 0.005  # relative difference of constants that are rounded to three digits


class Published(NamedTuple):
    """Constants by their names in a row, those of a curve as `name@length`; None where the measurements did not tell.

    `peak_flops` and `bytes_per_s` are what the shares are of, 0 where that is not stated.
    """

    version: str
    values: Constants
    peak_flops: float = 0.0
    bytes_per_s: float = 0.0


def published(tables: Tables, rules: KernelRules) -> dict[Key, Published]:
    """Return published constants of all rows that the rules have names for; of experts those of one routing."""
    names = Names(rules)
    return {key: fit for key, fit in (*_products(tables, names), *_attention(tables, names)) if key is not None}


def versions(tables: Tables, rules: KernelRules) -> dict[Key, str]:
    """Return what version each row was measured with."""
    names = Names(rules)
    found = {key: fit.version for key, fit in published(tables, rules).items()}
    for fit in tables.collective_fit:
        key = names.collective(fit.gpu, fit.source, fit.op, fit.backend, fit.n_gpus)
        if key is not None:
            found[key] = fit.version
    return found


def _products(tables: Tables, names: Names) -> Iterator[tuple[Key | None, Published]]:
    for fit in tables.gemm_fit:
        values = {"t0_us": fit.t0_us, "compute": fit.eff_compute, "memory": fit.eff_mem, "p": fit.pnorm}
        key = names.computed(fit.gpu, fit.framework, "gemm", fit.dtype)
        yield key, Published(fit.version, values, fit.peak_tflops_dense * TERA, fit.peak_bw_gbs * GIGA)
    routing = names.routing(fit.routing for fit in tables.moe_fit)
    for moe in tables.moe_fit:
        if moe.routing == routing:
            values = {"t0_us": moe.t0_us, "compute": moe.eff_compute, "memory": moe.eff_mem, "p": moe.pnorm}
            key = names.computed(moe.gpu, moe.framework, "moe", moe.dtype)
            yield key, Published(moe.version, values, moe.peak_tflops_dense * TERA)


def _attention(tables: Tables, names: Names) -> Iterator[tuple[Key | None, Published]]:
    for fit in tables.decode_fit:
        key = names.computed(fit.gpu, fit.framework, "decode_attention", fit.kv_dtype)
        values: Constants = {"t0_us": fit.t0_us, "memory": fit.eff_mem}
        yield key and key._replace(head_dim=fit.head_dim), Published(fit.version, values, 0.0, fit.peak_bw_gbs * GIGA)
    for prompt in tables.prefill_fit:
        key = names.prefill(prompt.gpu, prompt.framework, prompt.attn_dtype, prompt.kv_dtype, prompt.head_dim)
        shares = {f"flop_fraction@{length}": getattr(prompt, name) for name, length in PROMPTS.items()}
        values = {"t0_us": prompt.t0_us, "compute": prompt.eff_compute, **shares}
        yield key, Published(prompt.version, values, prompt.peak_tflops_dense * TERA)
    for mla in tables.mla_fit:
        key = names.computed(mla.gpu, mla.framework, "mla_decode", mla.kv_dtype)
        values = {"t0_us": mla.t0_us, "memory": mla.eff_mem, "compute": mla.eff_compute_bf16peak}
        yield key and key._replace(q_heads=mla.q_heads_local), Published(mla.version, values)


def restated(fit: Published, peak_flops: float, bytes_per_s: float) -> Constants:
    """Return published constants with their shares stated against other peaks."""
    scale = {
        "memory": fit.bytes_per_s / bytes_per_s if fit.bytes_per_s else 1.0,
        **dict.fromkeys(("compute", "flop_fraction"), fit.peak_flops / peak_flops if fit.peak_flops else 1.0),
    }
    return {
        name: None if value is None else value * scale.get(name.partition("@")[0], 1.0)
        for name, value in fit.values.items()
    }


def differences(row: EfficiencyRow, constants: Constants) -> list[str]:
    """Say of each constant that differs from that of a row: its name, what the row has, and what was published."""
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
