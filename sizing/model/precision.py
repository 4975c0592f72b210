"""The formats of weights, cache and activations on a given GPU, and the precision in which each product runs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sizing.model.extras import NOTHING, Draft, Extras
from sizing.specs.data import Formats, PrecisionFormat
from sizing.specs.engine import EngineSettings
from sizing.specs.errors import InputError, UntimedError, unknown
from sizing.specs.frozen import Frozen
from sizing.specs.gpu import DenseTflops, Gpu
from sizing.specs.model import Model, Quantisation, Stored
from sizing.specs.units import BITS_PER_BYTE

if TYPE_CHECKING:
    from sizing.specs.facts import SparsityFacts


SIXTEEN_BIT = ("fp32", "fp16", "bf16")
LINEAR = ("attention", "dense_mlp", "shared_expert", "expert")  # roles that pruning is applied to


class RoleFormat(NamedTuple):
    """A share of a role's weights in a different format, with its bits per value and the precision of its products."""

    role: str
    share: float
    weight_format: str
    bits: float
    product: str


class PrecisionPlan(Frozen):
    """Formats and precisions of one deployment.

    `weight_format` is how quantised roles are stored; roles in `kept_16bit` stay at `activation`. `gemm` and `moe` are the
    precisions in which quantised dense and expert products run. `attention` is the precision of attention products.
    `sparsity` is set if linear layers are pruned. `draft` is the plan of the draft. `others` are the roles that a mixed
    checkpoint stores in different formats.
    """

    weight_format: str
    weight_bits: float
    activation: str
    activation_bits: float
    kept_16bit: frozenset[str]
    kv_format: str
    kv_bits: float
    gemm: str
    moe: str
    attention: str
    block: int | None
    notes: tuple[str, ...] = ()
    sparsity: SparsityFacts | None = None
    draft: PrecisionPlan | None = None
    others: tuple[RoleFormat, ...] = ()

    @property
    def kv_bytes(self) -> float:
        """Bytes of one cached value."""
        return self.kv_bits / BITS_PER_BYTE

    @property
    def weight_only(self) -> bool:
        """Whether quantised weights are dequantised and multiplied at 16 bit."""
        return self.weight_format not in SIXTEEN_BIT and self.gemm in SIXTEEN_BIT

    def format_of(self, role: str) -> str:
        """The main format of a role's weights."""
        most = self._most(role)
        if most is not None:
            return most.weight_format
        return self.activation if role in self.kept_16bit else self.weight_format

    def product_of(self, role: str) -> str:
        """The main precision of products with a role's weights."""
        most = self._most(role)
        if most is not None:
            return most.product
        if self.format_of(role) in SIXTEEN_BIT:
            return self.activation
        return self.moe if role == "expert" else self.gemm

    def _most(self, role: str) -> RoleFormat | None:
        return next((one for one in self.others if one.role == role and one.share > 0.5), None)

    def is_quantised(self, role: str) -> bool:
        """Whether a role's weights have a quantised format."""
        return self.format_of(role) not in SIXTEEN_BIT

    def is_sparse(self, role: str) -> bool:
        """Whether a role's weights are pruned: only linear layers are, not embeddings, head, router or norms."""
        return self.sparsity is not None and role in LINEAR

    def weight_bytes(self, role: str) -> float:
        """Mean bytes of one weight of a role, including scales and, if pruned, the positions of kept values."""
        bits = self.weight_bits if role not in self.kept_16bit else self.activation_bits
        bits += sum(one.share * (one.bits - bits) for one in self.others if one.role == role)
        if self.sparsity is not None and role in LINEAR:
            bits = self.sparsity.kept * (bits + self.sparsity.metadata_bits)
        return bits / BITS_PER_BYTE

    @property
    def dense(self) -> PrecisionPlan:
        """The plan of the same weights before they were pruned."""
        return replace(self, sparsity=None) if self.sparsity else self

    def input_bytes(self, role: str) -> float:
        """Bytes of one input value of a product of a role: 16 bit, or 8 if the product runs in 8 bit or less."""
        narrow = self.is_quantised(role) and self.product_of(role) not in SIXTEEN_BIT
        return 1.0 if narrow else self.activation_bits / BITS_PER_BYTE


PEAKS = {"fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "mxfp4_bf16": "bf16", "mxfp4_fp8": "fp8"}


def peak_of(precision: str) -> str:
    """The dense peak of a precision: `fp8_block` runs on fp8, `nvfp4` on fp4, `mxfp4_bf16` on bf16."""
    return PEAKS.get(precision, precision)


def peak_flops(tflops: DenseTflops, precision: str) -> float:
    """The dense peak of `precision` in FLOP/s. On hardware before Ampere fp16 replaces bf16.

    Raises UntimedError if the hardware lacks this peak or it is unknown.
    """
    name = peak_of(precision)
    value = getattr(tflops, name, None)
    if value is None and name == "bf16":
        value = tflops.fp16
    if value is None:
        stated = tflops.model_dump(exclude_none=True)
        raise UntimedError(f"no {name} peak", field="datasheet.dense_tflops", allowed=", ".join(stated))
    return float(value) * 1e12


def requested(quantisation: Quantisation, precision: str | None) -> Quantisation:
    """The quantisation of the checkpoint, or the one that the requested `precision` means.

    The checkpoint's quantisation stays if it is of the requested family (block FP8 for FP8, any 16-bit format for 16-bit).
    Any other `precision` re-quantises every linear layer and leaves embeddings, head, norms and router at 16 bit.
    """
    own = quantisation.precision
    if precision is None or precision == own or (precision == "fp8" and own == "fp8_block"):
        return quantisation
    fresh = Quantisation(precision=precision, kv_precision=None, method="requested")
    return fresh._replace(kept_16bit=frozenset()) if precision in SIXTEEN_BIT else fresh


NARROWER = ("fp8", "int4")  # weights with fewer bits, in the order of suggestions


def narrower(bits: float, formats: Formats) -> list[str]:
    """The formats of `NARROWER` whose values have fewer whole bits than weights of `bits` bits; scales make no difference."""
    return [name for name in NARROWER if int(stored_as(name, formats).bits) < int(bits)]


def stored_as(name: str, formats: Formats) -> PrecisionFormat:
    """The storage of weight or cache format `name`. Raises InputError for an unknown name."""
    found = formats.formats.get(name)
    if found is None:
        raise InputError(unknown(name, "known weight or cache format", formats.formats))
    return found


def _compute(format_name: str, formats: Formats, gpu: Gpu, settings: EngineSettings, *, experts: bool) -> str | None:
    """The precision in which a quantised product runs natively; None for weight-only quantisation."""
    tflops = gpu.datasheet.dense_tflops
    if format_name == "mxfp4":
        if experts and settings.fp4_activation == "fp8" and tflops.fp4 is not None:
            return "mxfp4_fp8"
        return "mxfp4_bf16" if experts else None
    stored = stored_as(format_name, formats)
    if stored.vendors and gpu.vendor not in stored.vendors:
        return None
    native = stored.compute
    return format_name if any(getattr(tflops, peak) is not None for peak in native) else None


def plan(
    model: Model,
    gpu: Gpu,
    settings: EngineSettings,
    formats: Formats,
    *,
    precision: str | None = None,
    kv_precision: str = "auto",
    extras: Extras = NOTHING,
) -> PrecisionPlan:
    """Resolve formats and compute precisions for a model on a GPU, with pruning and a draft if `extras` have them.

    The cache format is as asked, else as the checkpoint states, else the activation precision. A format that the hardware
    cannot multiply is weight-only. Raises InputError for an unknown format.
    """
    found = _plan(model, gpu, settings, formats, precision, kv_precision)
    if extras.sparsity is not None:
        found = replace(found, sparsity=extras.sparsity)
    if extras.draft is not None:
        found = replace(found, draft=_of_draft(extras.draft, found, gpu, settings, formats))
    return found


def sparsity_why_not(plan: PrecisionPlan, gpu: Gpu) -> str | None:
    """The reason why `gpu` cannot multiply the pruned weights of `plan`, or None."""
    facts = plan.sparsity
    if facts is None:
        return None
    if gpu.architecture not in facts.architectures:
        return f"{gpu.name} has no sparse products ({', '.join(facts.architectures)} have)"
    if plan.weight_format not in facts.formats:
        return f"{plan.weight_format.upper()} weights have no 2:4 form; {', '.join(facts.formats)} have"
    if plan.weight_only:
        how = f"dequantised on {gpu.name} and multiplied as {plan.activation.upper()}"
        return f"{plan.weight_format.upper()} weights are {how}: that has no sparse kernel"
    return None


def kernels_why_not(plan: PrecisionPlan, settings: EngineSettings, gpu: Gpu) -> str | None:
    """The reason why an engine cannot run the weights of `plan` on `gpu`, because it has no kernels for them; or None."""
    formats = dict.fromkeys((plan.weight_format, *(one.weight_format for one in plan.others)))
    missing = [name for name in formats if name in settings.weights_without_kernels]
    capability = f"{gpu.name} (compute capability {gpu.compute_capability})"
    return f"no kernels for {', '.join(missing).upper()} weights on {capability}" if missing else None


def _of_draft(
    draft: Draft, target: PrecisionPlan, gpu: Gpu, settings: EngineSettings, formats: Formats
) -> PrecisionPlan:
    """The plan of a draft: the target's, or its own weights (heads: 16 bit) with the target's cache format."""
    own = replace(target, sparsity=None, draft=None, notes=())
    if draft.follows_precision:
        return own
    if draft.model is not None:
        return _plan(draft.model, gpu, settings, formats, None, target.kv_format)
    as_run = own.activation
    bits = own.activation_bits
    return replace(own, weight_format=as_run, weight_bits=bits, gemm=as_run, moe=as_run, others=())


@lru_cache(maxsize=1024)
def _plan(
    model: Model, gpu: Gpu, settings: EngineSettings, formats: Formats, precision: str | None, kv_precision: str
) -> PrecisionPlan:
    quantisation = requested(model.quantisation, precision)
    tflops = gpu.datasheet.dense_tflops
    notes: list[str] = []
    wanted = quantisation.precision if quantisation.precision in SIXTEEN_BIT else model.activation_precision
    activation = wanted
    if activation == "bf16" and tflops.bf16 is None:
        activation = "fp16"
        notes.append(f"{gpu.name} has no BF16: 16-bit math runs as FP16")
    weight_format = activation if quantisation.precision in SIXTEEN_BIT else quantisation.precision
    gemm = moe = activation
    if weight_format not in SIXTEEN_BIT:
        if not quantisation.weight_only:
            gemm = _compute(weight_format, formats, gpu, settings, experts=False) or activation
            moe = _compute(weight_format, formats, gpu, settings, experts=True) or activation
        if gemm in SIXTEEN_BIT and moe in (*SIXTEEN_BIT, "mxfp4_bf16"):
            only = f"{weight_format.upper()} is weight-only on {gpu.name}"
            notes.append(f"{only}: weights shrink, products run at the {activation.upper()} peak")
    kv_format = kv_precision
    if kv_precision == "auto":
        kv_format = quantisation.kv_precision or settings.auto_cache or activation
    in_fp8 = kv_format == "fp8" and settings.fp8_attention and tflops.fp8 is not None
    return PrecisionPlan(
        weight_format=weight_format,
        weight_bits=quantisation.bits or stored_as(weight_format, formats).bits,
        activation=activation,
        activation_bits=stored_as(activation, formats).bits,
        kept_16bit=quantisation.kept_16bit,
        kv_format=kv_format,
        kv_bits=stored_as(kv_format, formats).bits,
        gemm=gemm,
        moe=moe,
        attention="fp8" if in_fp8 else activation,
        block=quantisation.block or (settings.fp8_block if weight_format == "fp8_block" else None),
        notes=tuple(notes),
        others=tuple(_other(one, activation, formats, gpu, settings) for one in quantisation.stored),
    )


def _other(one: Stored, activation: str, formats: Formats, gpu: Gpu, settings: EngineSettings) -> RoleFormat:
    name = one.precision or activation
    product = name if name in SIXTEEN_BIT else _compute(name, formats, gpu, settings, experts=one.role == "expert")
    return RoleFormat(one.role, one.share, name, stored_as(name, formats).bits, product or activation)
