"""Times each operation of a replica, from measured kernels of its engine and formats and from the GPU's peaks.

`choices` says which constants were measured on this GPU and which are borrowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sizing.catalog.shelf import only
from sizing.model.architecture import Layout, Shard
from sizing.model.attention import FLOPS_PER_MAC, KEY_AND_VALUE, Numeric, Work
from sizing.model.operations import Operation, Routed
from sizing.model.precision import SIXTEEN_BIT, PrecisionPlan, peak_flops
from sizing.replica import experts, surfaces
from sizing.replica.kernel_rows import Choice, KernelRows
from sizing.replica.links import Links
from sizing.replica.replica import Replica
from sizing.specs.bands import UNCORRECTED, Correction, Corrections
from sizing.specs.engine import EngineSettings
from sizing.specs.engine_time import HostTime, VectorAttention
from sizing.specs.gpu import Assumptions, GemmRow, Gpu, stand_ins
from sizing.specs.kernels import ExpertKernel, MeasuredKernels, Surface
from sizing.specs.units import GIGA, MICRO, TERA

ROUTING_KERNELS = 2  # top-k with its weights; sum with the shared expert
WEIGHT_ONLY_ROWS = {"int4": ("int4",), "int8": ("int8_weight_only",)}
UNPACKED = (
    "int4",
    "int8_weight_only",
)  # fused experts that unpack weights: too far below the peak to lose clock (see `chips`)


def corners() -> tuple[float, ...]:
    """Context lengths in tokens between which decode attention is linear."""
    return only(MeasuredKernels).forms.contexts


def decode_variant(work: Work) -> str:
    """The variant of decode attention kernels: windowed (`win`), one query head per key head (`mha`), or groups (`gqa`)."""
    if work.window:
        return "win"
    return "mha" if work.q_heads == work.kv_heads else "gqa"


def distance(row: Surface, head_size: int) -> float:
    """Distance in octaves from `head_size` to the nearest measured head size."""
    return float(np.min(np.abs(np.log2(np.asarray(row.head_sizes) / head_size))))


@dataclass(unsafe_hash=True)
class Kernels:
    """Constants of one GPU for what a replica runs on it under one engine. `seconds` times any operation.

    `correction` multiplies the times of steps. It is left out where predictions are compared with measurements. Kernels of equal
    fields are equal, and find the same constants.
    """

    gpu: Gpu
    engine: str
    shard: Shard
    correction: Correction = UNCORRECTED

    @classmethod
    def of(cls, replica: Replica) -> Kernels:
        """The kernels of a replica."""
        gpu, service = replica.gpu_type.gpu, replica.service
        correction = UNCORRECTED if service.model.pooled else only(Corrections).of(service.situation(gpu))
        return cls(gpu, service.engine.name, replica.shard, correction)

    @cached_property
    def _rows(self) -> KernelRows:
        return KernelRows(self.gpu, self.engine)

    @cached_property
    def _timers(self) -> dict[str, Callable[[Operation], Numeric]]:
        """The timer of each rule."""
        return {
            "gemm": self._gemm,
            "moe": self._moe,
            "small": self._small,
            "route": self._route,
            "state": self._state,
            "adapter": self._state,
            "decode_attention": self._decode_attention,
            "mla_decode": self._mla_decode,
            "prefill_attention": self._prefill_attention,
            "mla_prefill": self._mla_prefill,
            "scan_gdn": self._recurrent,
            "scan_kda": self._recurrent,
            "state_gdn": self._recurrent,
            "state_kda": self._recurrent,
            "send": self.links.send,
            "low_latency": self.links.dispatch_directly,
            "high_throughput": self.links.dispatch_by_node,
        }

    @property
    def settings(self) -> EngineSettings:
        """The settings of the engine."""
        return self.shard.settings

    @property
    def host(self) -> HostTime:
        """The host's time of a step, with the correction by the user's own runs."""
        return self.settings.host.with_own(self.gpu.own_runs)

    @property
    def plan(self) -> PrecisionPlan:
        """The formats of weights, cache and products."""
        return self.shard.plan

    @cached_property
    def links(self) -> Links:
        """The links between GPUs, timed by the engine's rows."""
        plain, chosen = self.settings.collectives == "nccl", self.settings
        return Links(self.gpu, self._rows, plain, chosen.fused_all_reduce, chosen.one_shot)

    @cached_property
    def draft(self) -> Kernels:
        """The kernels of the draft: same GPU and engine, weights in the draft's own format."""
        return replace(self, shard=self.shard.draft)

    def at(self, layout: Layout) -> Kernels:
        """The same kernels for a layout of another pipeline depth."""
        if layout == self.shard.layout:
            return self
        return replace(self, shard=replace(self.shard, layout=layout))

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Memory bandwidth from the datasheet."""
        return self.gpu.datasheet.memory.bandwidth_gb_per_s * GIGA

    def peak(self, precision: str) -> float:
        """Dense peak of a precision in FLOP/s."""
        return peak_flops(self.gpu.datasheet.dense_tflops, precision)

    @cached_property
    def _bytes_per_s(self) -> float:
        """Bandwidth of which kernels reach a share: the datasheet's, times the factor of the user's own runs."""
        return self.bandwidth_bytes_per_s * (1.0 if self.gpu.own_runs is None else self.gpu.own_runs.bandwidth)

    def _flops_per_s(self, precision: str) -> float:
        """Peak of which kernels reach a share: the datasheet's, times the factor of the user's own runs."""
        return self.peak(precision) * (1.0 if self.gpu.own_runs is None else self.gpu.own_runs.compute)

    def compute_precision(self, operation: Operation) -> str:
        """The precision in which `operation` multiplies."""
        if operation.rule == "moe":
            return self.plan.product_of("expert")
        if operation.rule in ("prefill_attention", "decode_attention", "mla_decode", "mla_prefill"):
            return self.plan.attention
        if operation.rule == "gemm" and self.plan.is_quantised(operation.role):
            return self.plan.product_of(operation.role)
        return self.plan.activation

    def quantises(self, operation: Operation) -> bool:
        """Whether a separate kernel quantises the inputs of a product."""
        precision = self.compute_precision(operation)
        return operation.rule == "gemm" and precision not in SIXTEEN_BIT and not self._fuses(precision)

    def seconds(self, operation: Operation) -> Numeric:
        """Seconds of one execution of `operation`. Attention without work takes 0 s."""
        busy_s = self._timers.get(operation.rule, self.links.collective)(operation)
        gap_s = self.settings.host.per_kernel_us * MICRO
        return np.where(np.asarray(busy_s) > 0, busy_s + gap_s, 0.0) if gap_s else busy_s

    def choices(self, operations: Iterable[Operation]) -> dict[tuple[str, str], Choice]:
        """The rows that time the operations, by operation and the precision that was asked for."""
        fresh = replace(self)
        for operation in operations:
            fresh.seconds(operation)
        return fresh._rows.choices()

    def _chip(self, surface: Surface, precision: str, gain: float = 1.0) -> surfaces.Chip:
        """The GPU constants for a surface: its own peaks, at a clock that keeps within its own power limit."""
        chips, clock = self._rows.chips, self._clock(surface.gpu)
        return surfaces.Chip(
            self._flops_per_s(precision) * MICRO * gain * min(1.0, clock),
            self._bytes_per_s * MICRO,
            chips.of.get(self._rows.card, chips.multiprocessors),
            chips.sustained,
            max(1.0, clock),
        )

    def _drawn_bytes_per_s(self, share: float) -> float:
        """The bandwidth of which a product reaches a share; lower where the multiprocessors cannot draw all of it."""
        drawn = self._rows.chips.drawn_gb_per_s.get(self._rows.card)
        return self._bytes_per_s if drawn is None else min(self._bytes_per_s, drawn * GIGA / share)

    def _clock(self, measured_on: str) -> float:
        """The clock that the power limit allows, over that of the GPU whose kernels are used: more watts per FLOP, a higher clock."""
        if measured_on == self._rows.card:
            return 1.0
        chips, sheet = self._rows.chips, self.gpu.datasheet
        watts_per_tflops = sheet.tdp_w / (self.peak("bf16") / TERA)
        reference = chips.reference_w / chips.reference_tflops
        return float((watts_per_tflops / reference) ** only(MeasuredKernels).power.exponent)

    # --- timing --------------------------------------------------------------------------------------------------

    def _gain(self, operation: Operation) -> float:
        """Speedup of products with pruned weights over dense ones."""
        facts = self.plan.sparsity
        if facts is None or not self.plan.is_sparse(operation.role):
            return 1.0
        return 1 + facts.reached * (facts.rate - 1)

    def _product(self, operation: Operation, kind: str, precision: str, weight_format: str) -> Numeric:
        weight_only = weight_format not in SIXTEEN_BIT and precision in SIXTEEN_BIT
        rows = WEIGHT_ONLY_ROWS.get(weight_format, ()) if weight_only else ()
        wanted = (*rows, *stand_ins(precision))
        surface = self._rows.surface(kind, wanted)
        row: Any = surface or self._rows.choose(kind, wanted).row
        older = self.settings.older_experts
        if kind == "moe" and older is not None:
            row = row.model_copy(update={"compute": older.compute})
        derate = only(Assumptions).weight_only_compute if weight_only and row.precision not in rows else 1.0
        gain = derate * self._gain(operation)
        if kind == "gemm" and precision == "fp8":
            gain *= self.settings.fp8_product_gain
        if surface is not None:
            return self._measured_product(operation, surface, precision, gain)
        few = row.few_rows if isinstance(row, GemmRow) and row.few_rows else row
        within = np.asarray(operation.rows) <= (few.most if few is not row else 0)
        measured = surfaces.combined_s(
            operation.flops,
            operation.bytes,
            peak_flops=self._flops_per_s(precision),
            compute=np.where(within, few.compute, row.compute) * gain,
            bandwidth_bytes_per_s=self._bytes_per_s,
            memory=np.where(within, few.memory, row.memory),
            p=row.p,
            t0_s=row.t0_us * MICRO,
        )
        if kind == "gemm" and self._fuses(precision):
            return self._without_quantise_kernel(operation, precision, measured, row.t0_us * MICRO)
        return measured

    def _fuses(self, precision: str) -> bool:
        """Whether the kernel before a product of this precision also quantises its inputs."""
        apart = precision in self.settings.quantised_apart or not self.settings.fused_activation_quantisation
        return precision not in SIXTEEN_BIT and not apart

    def _measured_product(self, operation: Operation, surface: Surface, precision: str, gain: float) -> Numeric:
        matrix = operation.matrix
        assert matrix is not None
        chip = self._chip(surface, precision, gain)
        chip = chip._replace(bytes_per_us=MICRO * self._drawn_bytes_per_s(surface.constants["em"]))
        product = surfaces.Product(operation.rows, matrix.outputs, matrix.inputs, operation.bytes)
        bare = self._rows.surface("gemm", stand_ins("bf16")) if self._fuses(precision) else None
        return MICRO * surfaces.product_us(surface, chip, product, bare=bare)

    def _without_quantise_kernel(
        self, operation: Operation, precision: str, measured_s: Numeric, t0_s: float
    ) -> Numeric:
        """Subtract the separate kernel that quantises a product's inputs from a measured row: its launch and its traffic.

        The engine fuses it into the preceding norm or activation. At least a 16-bit product's launch and the bare roofline
        remain.
        """
        launch_s = min(t0_s, self._rows.choose("gemm", stand_ins("bf16")).row.t0_us * MICRO)
        inputs = operation.matrix.inputs if operation.matrix else 0.0
        moved, share = surfaces.QUANTISE_BYTES * operation.rows * inputs, only(Assumptions).small_kernels.memory
        streamed_s = self._streamed_s(moved, share, t0_s - launch_s)
        bare_s = np.maximum(
            operation.flops / (self._flops_per_s(precision) * self._gain(operation)),
            operation.bytes / self._bytes_per_s,
        )
        fused: Numeric = np.maximum(measured_s - streamed_s, launch_s + bare_s)
        return fused

    def _gemm(self, operation: Operation) -> Numeric:
        alone_s = self._product(
            operation, "gemm", self.compute_precision(operation), self.plan.format_of(operation.role)
        )
        return self._beside(operation, alone_s)

    def _beside(self, operation: Operation, alone_s: Numeric) -> Numeric:
        """Seconds of an operation of shared experts.

        In parallel with the routed experts it takes only the time of its bytes, as both share the bandwidth.
        """
        if not operation.name.startswith("shared_expert"):
            return alone_s
        beside = np.asarray(operation.rows) <= self.settings.shared_expert_tokens
        return np.where(beside, np.minimum(operation.bytes / self._bytes_per_s, alone_s), alone_s)

    def _moe(self, operation: Operation) -> Numeric:
        routed = operation.routed
        measured = self._expert_kernel(routed) if routed is not None else None
        if routed is not None and measured is not None:
            peak_flops = self._flops_per_s(self.plan.product_of("expert")) * self._gain(operation)
            bandwidth = self._drawn_bytes_per_s(measured.memory)
            kept = 1.0 if measured.precision in UNPACKED else self._rows.chips.sustained_experts
            sustained = min(1.0, kept * max(1.0, self._clock(measured.gpu)))
            if self.settings.expert_imbalance is None:
                routed = experts.most_liked(routed)
            measured_s = experts.seconds(
                measured, routed, peak_flops=peak_flops, bytes_per_s=bandwidth, sustained=sustained
            )
            # Corrections of shapes that were not measured may lead above the roof.
            least_s = np.maximum(operation.flops / peak_flops, operation.bytes / bandwidth)
            within: Numeric = np.maximum(measured_s, least_s)
            return within
        if routed is not None:
            operation = replace(operation, bytes=operation.bytes - experts.spared_bytes(routed))
        older, product = self.settings.older_experts, self.plan.product_of("expert")
        precision = self.plan.activation if older is not None and older.sixteen_bit else product
        return self._product(operation, "moe", precision, self.plan.format_of("expert"))

    def _expert_kernel(self, routed: Routed) -> ExpertKernel | None:
        quick, formats = self.settings.quick_experts, self._expert_formats()
        of = quick.rows_of if quick and self.shard.layout.dp == 1 and formats[0] in quick.formats else self.engine
        layout = self.shard.layout
        shape = f"{routed.inputs:.0f}x{routed.width * layout.tp * layout.dp / layout.ep:.0f}"
        return self._rows.experts(formats, routed, of, shape, self.settings.one_expert_kernel)

    def _expert_formats(self) -> tuple[str, ...]:
        """The formats whose measured kernels may time the experts: their own first, then the stand-ins."""
        product, weights = self.plan.product_of("expert"), self.plan.format_of("expert")
        own = WEIGHT_ONLY_ROWS.get(weights, ()) if product in SIXTEEN_BIT else ()
        return own if self.settings.older_experts else (*own, *stand_ins(product))

    def _small(self, operation: Operation) -> Numeric:
        constants = only(Assumptions).small_kernels
        return self._beside(operation, self._streamed_s(operation.bytes, constants.memory, constants.t0_us * MICRO))

    def _streamed_s(self, moved: Numeric, memory: float, t0_s: float) -> Numeric:
        """Seconds to move bytes at a share of the bandwidth, plus a start-up time."""
        return surfaces.streamed_s(moved, bandwidth_bytes_per_s=self._bytes_per_s, memory=memory, t0_s=t0_s)

    def _route(self, operation: Operation) -> Numeric:
        """Route tokens to their experts and sum the results: separate kernels, unless the expert kernel does it."""
        measured = self._expert_kernel(operation.routed) if operation.routed is not None else None
        if measured is None:
            return self._small(operation)
        return 0.0 * self._small(operation) if measured.routes else ROUTING_KERNELS * self._small(operation)

    def _state(self, operation: Operation) -> Numeric:
        """Recurrent state: traffic at the small kernels' share of bandwidth, products at the 16-bit share of the peak."""
        constants = only(Assumptions).small_kernels
        row = self._rows.choose("gemm", stand_ins("bf16")).row
        busy = surfaces.combined_s(
            operation.flops,
            operation.bytes,
            peak_flops=self._flops_per_s(self.plan.activation),
            compute=row.compute,
            bandwidth_bytes_per_s=self._bytes_per_s,
            memory=constants.memory,
            p=row.p,
            t0_s=constants.t0_us * MICRO,
        )
        return np.where(np.asarray(operation.bytes) > 0, busy, 0.0)

    def _decode_attention(self, operation: Operation) -> Numeric:
        work, wanted = operation.work, stand_ins(self.plan.kv_format)
        assert work is not None
        kind = decode_variant(work)
        surface = self._rows.surface(
            "decode_attention",
            wanted,
            fits=lambda row: (row.variant not in ("", kind), distance(row, work.head_dim)),
            key=(work.head_dim, kind),
        )
        vector = self.settings.vector_attention
        group = round(work.q_heads / max(work.kv_heads, 1))
        by_vector = vector is not None and vector.holds(group, self.plan.kv_format)
        if surface is not None and not by_vector:
            chip = self._chip(surface, self.plan.activation)
            busy = MICRO * surfaces.decode_us(surface, chip, work, 1.0 if surface.precision == "fp8" else 2.0)
            older, most_read = self.settings.grouped_reads, self._rows.chips.most_read
            if older is not None and older.group == group:
                most_read = older.share
            busy = np.maximum(busy, operation.bytes / (self._bytes_per_s * most_read))
            return np.where(np.asarray(operation.bytes) > 0, busy, 0.0)
        row = self._rows.choose(
            "decode_attention",
            wanted,
            distance=lambda row: abs(row.head_dim - work.head_dim),
            key=(work.head_dim,),
        ).row
        if vector is not None and by_vector:
            busy = row.t0_us * MICRO + self._vector_attention_s(operation, work, vector)
        else:
            busy = self._streamed_s(operation.bytes, row.memory, row.t0_us * MICRO)
        return np.where(np.asarray(operation.bytes) > 0, busy, 0.0)

    def _vector_attention_s(self, operation: Operation, work: Work, vector: VectorAttention) -> Numeric:
        """Seconds of decode attention on the general cores without start-up.

        It is the time of the whole batch plus the last block's own time.
        """
        memory_s = operation.bytes / (self._bytes_per_s * vector.memory)
        compute_s = operation.flops / (vector.tflops * TERA)
        macs = KEY_AND_VALUE * work.head_dim * work.context_tokens
        block_s = FLOPS_PER_MAC * macs / (vector.block_gflop_per_s * GIGA)
        return np.maximum(memory_s, compute_s) + block_s

    def _mla_decode(self, operation: Operation) -> Numeric:
        """Latent attention: the slower of reading the latents and multiplying them, each at its measured share.

        A row states the share of the one that limited its measurements. The other share comes from the same GPU with fewer
        heads (memory) or from a 16-bit product (compute).
        """
        work, precisions = operation.work, stand_ins(self.plan.kv_format)
        assert work is not None
        kind = "sparse_decode" if work.chosen else "latent_decode"
        surface = self._rows.surface(kind, precisions) if work.pair_values else None
        if surface is not None:
            chip = self._chip(surface, self.plan.activation)
            timed = surfaces.sparse_decode_us if work.chosen else surfaces.latent_decode_us
            return np.where(np.asarray(operation.bytes) > 0, MICRO * timed(surface, chip, work), 0.0)

        def near(row: Any) -> float:
            return abs(float(np.log2(row.q_heads / work.q_heads)))

        row = self._rows.choose("mla_decode", precisions, distance=near, key=("row", work.q_heads)).row
        by_memory = self._rows.choose(
            "mla_decode",
            precisions,
            distance=near,
            accept=lambda row: row.memory is not None,
            key=("memory", work.q_heads),
        ).row
        compute = row.compute or self._rows.choose("gemm", stand_ins("bf16")).row.compute
        memory_s = operation.bytes / (self._bytes_per_s * (row.memory or by_memory.memory))
        compute_s = operation.flops / (self._flops_per_s(self.plan.activation) * compute)
        busy = row.t0_us * MICRO + np.maximum(memory_s, compute_s)
        return np.where(np.asarray(operation.bytes) > 0, busy, 0.0)

    def _mla_prefill(self, operation: Operation) -> Numeric:
        """Prefill attention over latents that are expanded into heads, as every engine does for prompts without a long cached part.

        With sparse attention, prompts longer than the number of chosen latents use the absorbed form.
        """
        work, formats = operation.work, stand_ins(self.plan.kv_format)
        assert work is not None
        plain = self._rows.surface("latent_prefill", formats)
        if plain is None:
            return self._prefill_attention(operation)
        dense_us = surfaces.latent_prefill_us(plain, self._chip(plain, self.plan.activation), work)
        sparse = self._rows.surface("sparse_prefill", formats) if work.chosen else None
        if sparse is not None:
            by_index = self._flops_per_s("fp8") * MICRO
            sparse_us = surfaces.sparse_prefill_us(sparse, self._chip(sparse, self.plan.activation), work, by_index)
            dense = bool(sparse.constants["dense"]) & (np.asarray(work.prompt_tokens) <= work.chosen)
            dense_us = np.where(dense, dense_us, sparse_us)
        return np.where(np.asarray(operation.flops) > 0, MICRO * dense_us, 0.0)

    def _recurrent(self, operation: Operation) -> Numeric:
        """A scan over prompts, or the state update of each decoding sequence."""
        part, kind = operation.rule.split("_")
        surface = self._rows.surface(part, ("bf16",), fits=lambda row: not row.variant.startswith(kind), key=(kind,))
        work = operation.work
        if surface is None or work is None:
            return self._state(operation)
        chip = self._chip(surface, self.plan.activation)
        busy_us = (
            surfaces.scan_us(surface, chip, work)
            if part == "scan"
            else surfaces.state_us(surface, chip, operation.bytes)
        )
        return np.where(np.asarray(operation.bytes) > 0, MICRO * busy_us, 0.0)

    def _prefill_attention(self, operation: Operation) -> Numeric:
        work, cache = operation.work, "fp8" if self.plan.kv_format == "fp8" else "bf16"
        assert work is not None
        surface = None
        if work.kv_heads:  # others have no key heads
            surface = self._rows.surface(
                "prefill_attention",
                stand_ins(self.plan.attention),
                fits=lambda row: (row.cache != cache, distance(row, work.head_dim)),
                key=(work.head_dim, cache),
            )
        if surface is not None:
            chip = self._chip(surface, surface.precision)
            busy = MICRO * surfaces.prefill_us(surface, chip, work, 1.0 if cache == "fp8" else 2.0)
            return np.where(np.asarray(operation.flops) > 0, busy, 0.0)
        row = self._rows.choose(
            "prefill_attention",
            stand_ins(self.plan.attention),
            distance=lambda row: abs(row.head_dim - work.head_dim) + (0 if row.cache_precision == cache else 1),
            key=(work.head_dim, cache),
        ).row
        share = surfaces.curve_share(work.prompt_tokens, row.tokens, row.flop_fraction)
        compute_s = operation.flops / (self._flops_per_s(row.precision) * np.maximum(share, 1e-6))
        memory_s = operation.bytes / self._bytes_per_s
        busy = row.t0_us * MICRO + np.maximum(compute_s, memory_s)
        return np.where(np.asarray(operation.flops) > 0, busy, 0.0)
