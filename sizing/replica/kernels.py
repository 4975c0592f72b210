"""The measured constants of one GPU, chosen for one engine and precision plan, and the time of each operation.

A row is looked for in this order: the engine's own on this GPU, another engine's on this GPU, the assumed set of
the GPU's architecture. `choices` says which constants were measured and which borrowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sizing.catalog.profiles import expert_kernels
from sizing.model.architecture import Layout, Shard
from sizing.model.attention.terms import FLOPS_PER_MAC, KEY_AND_VALUE, Numeric
from sizing.model.operations import Operation, Routed
from sizing.model.precision import SIXTEEN_BIT, PrecisionPlan, peak_flops
from sizing.replica import experts, roofline
from sizing.replica.replica import Replica
from sizing.specs.bands import UNCORRECTED, Correction
from sizing.specs.data import Data
from sizing.specs.engine import EngineSettings, HostTime, VectorAttention
from sizing.specs.errors import Fault, UntimedError
from sizing.specs.experts import ExpertKernel
from sizing.specs.gpu import AssumedEfficiency, Assumptions, DispatchWay, EfficiencyRow, Gpu, stand_ins
from sizing.specs.units import BITS_PER_BYTE, GIGA, MICRO, TERA

ROUTING_KERNELS = 2  # top-k with its weights; sum with the shared expert
QUANTISE_BYTES = 3  # a quantise kernel reads 16 bits and writes 8 for each input value
WEIGHT_ONLY_ROWS = {"int4": ("int4",), "int8": ("int8_weight_only",)}


@dataclass(frozen=True, slots=True)
class Choice:
    """A row chosen for an operation, and whether it was measured on this GPU or borrowed."""

    row: Any
    borrowed_from: str | None


@dataclass
class Kernels:
    """Constants of one GPU for what a replica runs on it under one engine. `seconds` times any operation.

    `correction` is what steps are multiplied by; what is compared with measurements has none.
    """

    gpu: Gpu
    assumptions: Assumptions
    borrowed: Callable[[str], AssumedEfficiency | None]
    engine: str
    shard: Shard
    correction: Correction = UNCORRECTED
    _picked: dict[tuple[Any, ...], Choice] = field(default_factory=dict)
    _timers: dict[str, Callable[[Operation], Numeric]] = field(init=False)

    @classmethod
    def of(cls, replica: Replica, data: Data) -> Kernels:
        """The constants of a replica."""
        gpu, service = replica.gpu_type.gpu, replica.service
        correction = UNCORRECTED if service.model.pooled else data.correction(service.situation(gpu))
        return cls(gpu, data.assumptions, data.borrowed, service.engine.name, replica.shard, correction)

    def __post_init__(self) -> None:
        """Bind each rule to its timer."""
        self._timers = {
            "gemm": self._gemm,
            "moe": self._moe,
            "small": self._small,
            "route": self._route,
            "state": self._state,
            "adapter": self._state,
            "decode_attention": self._decode_attention,
            "mla_decode": self._mla_decode,
            "prefill_attention": self._prefill_attention,
            "send": self._send,
            "low_latency": self._dispatch_directly,
            "high_throughput": self._dispatch_by_node,
        }

    @property
    def settings(self) -> EngineSettings:
        """The settings of the engine."""
        return self.shard.settings

    @property
    def host(self) -> HostTime:
        """The host's time of a step, with what own runs add."""
        return self.settings.host.with_own(self.gpu.own_runs)

    @property
    def plan(self) -> PrecisionPlan:
        """The formats of weights, cache and products."""
        return self.shard.plan

    @cached_property
    def draft(self) -> Kernels:
        """The constants of what drafts: the same GPU and engine, weights in the draft's own format."""
        return replace(self, shard=self.shard.draft, _picked={})

    def at(self, layout: Layout) -> Kernels:
        """The same constants for another depth of the pipeline."""
        return replace(self, shard=replace(self.shard, layout=layout))

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Memory bandwidth of the datasheet."""
        return self.gpu.datasheet.memory.bandwidth_gb_per_s * GIGA

    def peak(self, precision: str) -> float:
        """Dense peak of a precision in FLOP/s."""
        return peak_flops(self.gpu.datasheet.dense_tflops, precision)

    @cached_property
    def _bytes_per_s(self) -> float:
        """Bandwidth that kernels reach shares of: the datasheet's, by the factor of own runs."""
        return self.bandwidth_bytes_per_s * (1.0 if self.gpu.own_runs is None else self.gpu.own_runs.bandwidth)

    def _flops_per_s(self, precision: str) -> float:
        """Peak that kernels reach shares of: the datasheet's, by the factor of own runs."""
        return self.peak(precision) * (1.0 if self.gpu.own_runs is None else self.gpu.own_runs.compute)

    def compute_precision(self, operation: Operation) -> str:
        """The precision in which `operation` multiplies."""
        if operation.rule == "moe":
            return self.plan.product_of("expert")
        if operation.rule in ("prefill_attention", "decode_attention", "mla_decode"):
            return self.plan.attention
        if operation.rule == "gemm" and self.plan.is_quantised(operation.role):
            return self.plan.product_of(operation.role)
        return self.plan.activation

    def quantises(self, operation: Operation) -> bool:
        """Whether an operation is a product whose inputs are quantised first."""
        return operation.rule == "gemm" and self.compute_precision(operation) not in SIXTEEN_BIT

    def seconds(self, operation: Operation) -> Numeric:
        """Seconds of one execution of `operation`. Attention without work takes 0 s."""
        busy_s = self._timers.get(operation.rule, self._collective)(operation)
        gap_s = self.settings.host.per_kernel_us * MICRO
        return np.where(np.asarray(busy_s) > 0, busy_s + gap_s, 0.0) if gap_s else busy_s

    def choices(self, found: Iterable[Operation]) -> dict[tuple[str, str], Choice]:
        """The rows that operations are timed by, in their order, each by its operation and the precision that it wants."""
        fresh = replace(self, _picked={})
        for operation in found:
            fresh.seconds(operation)
        return {(name, wanted[0]): choice for (name, wanted, *_), choice in fresh._picked.items()}

    # --- choosing rows -------------------------------------------------------------------------------------------

    def _choose(
        self,
        operation: str,
        precisions: Iterable[str],
        *,
        distance: Callable[[Any], Any] = lambda row: 0.0,
        accept: Callable[[Any], bool] = lambda row: True,
        key: tuple[Any, ...] = (),
    ) -> Choice:
        wanted = tuple(precisions)
        memo = (operation, wanted, *key)
        if memo not in self._picked:
            self._picked[memo] = self._search(operation, wanted, distance, accept)
        return self._picked[memo]

    def _search(
        self,
        operation: str,
        precisions: tuple[str, ...],
        distance: Callable[[Any], Any],
        accept: Callable[[Any], bool],
    ) -> Choice:
        for rows, source in self._pools():
            for precision in precisions:
                found = [
                    row
                    for row in rows
                    if row.operation == operation and getattr(row, "precision", precision) == precision and accept(row)
                ]
                if found:
                    best = min(found, key=lambda row: (distance(row), self._engine_rank(row.engine)))
                    return Choice(best, source)
        first, *others = dict.fromkeys(precisions)
        instead = f", nor in {' or '.join(others)} in its place" if others else ""
        raise UntimedError(
            Fault(
                f"{self.gpu.name} ({self.gpu.architecture}) has no measured or assumed efficiency of {operation} in "
                f"{first}{instead}",
                field="efficiency",
                allowed="another precision of weights or cache, or a row in a GPU profile of your own",
            )
        )

    def _pools(self) -> Iterator[tuple[Iterable[EfficiencyRow], str | None]]:
        """Yield the GPU's own rows, then those of its architecture's set, read only when the own ones lack something."""
        yield self.gpu.efficiency, None
        assumed = self.borrowed(self.gpu.architecture)
        if assumed is not None:
            yield assumed.efficiency, assumed.borrowed_from

    def _engine_rank(self, engine: str) -> int:
        return 0 if engine == self.engine else (1 if engine == "any" else 2)

    # --- timing --------------------------------------------------------------------------------------------------

    def _gain(self, operation: Operation) -> float:
        """How much faster pruned weights are multiplied than the same dense ones."""
        facts = self.plan.sparsity
        if facts is None or not self.plan.is_sparse(operation.role):
            return 1.0
        return 1 + facts.reached * (facts.rate - 1)

    def _product(self, operation: Operation, kind: str, precision: str, weight_format: str) -> Numeric:
        weight_only = weight_format not in SIXTEEN_BIT and precision in SIXTEEN_BIT
        rows = WEIGHT_ONLY_ROWS.get(weight_format, ()) if weight_only else ()
        choice = self._choose(kind, (*rows, *stand_ins(precision)))
        row = choice.row
        derate = self.assumptions.weight_only_compute if weight_only and row.precision not in rows else 1.0
        measured = roofline.combined_s(
            operation.flops,
            operation.bytes,
            peak_flops=self._flops_per_s(precision),
            compute=row.compute * derate * self._gain(operation),
            bandwidth_bytes_per_s=self._bytes_per_s,
            memory=row.memory,
            p=row.p,
            t0_s=row.t0_us * MICRO,
        )
        narrow = kind == "gemm" and precision not in SIXTEEN_BIT
        if narrow and self.settings.fused_activation_quantisation:
            return self._without_quantise_kernel(operation, precision, measured, row.t0_us * MICRO)
        return measured

    def _without_quantise_kernel(
        self, operation: Operation, precision: str, measured_s: Numeric, t0_s: float
    ) -> Numeric:
        """Take the separate kernel that quantises a product's input out of a measured row: its launch and its traffic.

        The engine fuses it into the norm or activation before. What stays is at least a 16-bit product's launch and
        the bare roofline.
        """
        launch_s = min(t0_s, self._choose("gemm", stand_ins("bf16")).row.t0_us * MICRO)
        moved, share = QUANTISE_BYTES * operation.input_values, self.assumptions.small_kernels.memory
        streamed_s = self._streamed_s(moved, share, t0_s - launch_s)
        bare_s = np.maximum(
            operation.flops / (self._flops_per_s(precision) * self._gain(operation)),
            operation.bytes / self._bytes_per_s,
        )
        fused: Numeric = np.maximum(measured_s - streamed_s, launch_s + bare_s)
        return fused

    def _gemm(self, operation: Operation) -> Numeric:
        weight_format = self.plan.format_of(operation.role)
        return self._product(operation, "gemm", self.compute_precision(operation), weight_format)

    def _moe(self, operation: Operation) -> Numeric:
        routed = operation.routed
        measured = self._expert_kernel(routed) if routed is not None else None
        if routed is not None and measured is not None:
            peak_flops = self._flops_per_s(self.plan.product_of("expert")) * self._gain(operation)
            bandwidth = self._bytes_per_s
            measured_s = experts.seconds(measured, routed, peak_flops=peak_flops, bytes_per_s=bandwidth)
            # Corrections of other shapes than were measured may lead above the roof.
            least_s = np.maximum(operation.flops / peak_flops, operation.bytes / bandwidth)
            within: Numeric = np.maximum(measured_s, least_s)
            return within
        return self._product(operation, "moe", self.plan.product_of("expert"), self.plan.format_of("expert"))

    def _expert_kernel(self, routed: Routed) -> ExpertKernel | None:
        """The measured kernel of experts: on this GPU, else on others of its architecture, of the engine before others'."""
        wanted = self._expert_formats()
        key = ("experts", wanted, routed.gated, routed.ranks > 1, routed.dispatch)
        if key not in self._picked:
            every = expert_kernels(self.gpu.architecture)
            rows = [row for row in every if row.precision in wanted]
            fitting = [row for row in rows if row.follows(routed.dispatch) and row.gated == routed.gated]
            fitting = fitting or [row for row in rows if row.runs(routed.gated, routed.ranks)]
            rows = fitting or [row for row in rows if row.runs(True, routed.ranks)]
            if not rows:
                return None
            best = min(
                rows,
                key=lambda row: (wanted.index(row.precision), row.gpu != self.gpu.name, self._engine_rank(row.engine)),
            )
            self._picked[key] = Choice(best, None if best.gpu == self.gpu.name else best.gpu)
        found: ExpertKernel = self._picked[key].row
        return found

    def _expert_formats(self) -> tuple[str, ...]:
        """The formats whose measured kernels time the experts: their own, then those that stand in."""
        product, weights = self.plan.product_of("expert"), self.plan.format_of("expert")
        own = WEIGHT_ONLY_ROWS.get(weights, ()) if product in SIXTEEN_BIT else ()
        # Published FP16 runs are of engines older than the tables of BF16 kernels.
        return own if product == "fp16" else (*own, *stand_ins(product))

    def _small(self, operation: Operation) -> Numeric:
        constants = self.assumptions.small_kernels
        return self._streamed_s(operation.bytes, constants.memory, constants.t0_us * MICRO)

    def _streamed_s(self, moved: Numeric, memory: float, t0_s: float) -> Numeric:
        """Seconds to move bytes at a share of the bandwidth, after a start."""
        return roofline.streamed_s(moved, bandwidth_bytes_per_s=self._bytes_per_s, memory=memory, t0_s=t0_s)

    def _route(self, operation: Operation) -> Numeric:
        """Finding each token's experts and adding up what they made: kernels of their own, but where that of the experts does it."""
        measured = self._expert_kernel(operation.routed) if operation.routed is not None else None
        if measured is None:
            return self._small(operation)
        return 0.0 * self._small(operation) if measured.routes else ROUTING_KERNELS * self._small(operation)

    def _state(self, operation: Operation) -> Numeric:
        """Recurrent state: traffic and products at the small kernels' share of bandwidth, 16-bit share of the peak."""
        constants = self.assumptions.small_kernels
        row = self._choose("gemm", stand_ins("bf16")).row
        busy = roofline.combined_s(
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
        row = self._choose(
            "decode_attention",
            stand_ins(self.plan.kv_format),
            distance=lambda row: abs(row.head_dim - operation.head_dim),
            key=(operation.head_dim,),
        ).row
        vector = self.settings.vector_attention
        group = round(operation.q_heads / max(operation.kv_heads, 1))
        if vector is not None and group not in vector.tensor_core_groups:
            busy = row.t0_us * MICRO + self._vector_attention_s(operation, vector)
        else:
            busy = self._streamed_s(operation.bytes, row.memory, row.t0_us * MICRO)
        return np.where(np.asarray(operation.bytes) > 0, busy, 0.0)

    def _vector_attention_s(self, operation: Operation, vector: VectorAttention) -> Numeric:
        """Seconds of decode attention on the general cores, beyond its start: whole batch, and the last block's own time."""
        memory_s = operation.bytes / (self._bytes_per_s * vector.memory)
        compute_s = operation.flops / (vector.tflops * TERA)
        macs = KEY_AND_VALUE * operation.head_dim * operation.context_tokens
        block_s = FLOPS_PER_MAC * macs / (vector.block_gflop_per_s * GIGA)
        return np.maximum(memory_s, compute_s) + block_s

    def _mla_decode(self, operation: Operation) -> Numeric:
        """Latent attention: the slower of reading the latents and multiplying them, each at its measured share.

        A row states the one that binds in its measurements; the other is bounded by what the same GPU reaches with
        fewer heads (memory) or in a 16-bit product (compute).
        """
        precisions = stand_ins(self.plan.kv_format)

        def near(row: Any) -> float:
            return abs(float(np.log2(row.q_heads / operation.q_heads)))

        row = self._choose("mla_decode", precisions, distance=near, key=("row", operation.q_heads)).row
        by_memory = self._choose(
            "mla_decode",
            precisions,
            distance=near,
            accept=lambda row: row.memory is not None,
            key=("memory", operation.q_heads),
        ).row
        compute = row.compute or self._choose("gemm", stand_ins("bf16")).row.compute
        memory_s = operation.bytes / (self._bytes_per_s * (row.memory or by_memory.memory))
        compute_s = operation.flops / (self._flops_per_s(self.plan.activation) * compute)
        busy = row.t0_us * MICRO + np.maximum(memory_s, compute_s)
        return np.where(np.asarray(operation.bytes) > 0, busy, 0.0)

    def _prefill_attention(self, operation: Operation) -> Numeric:
        wanted = self.plan.attention
        cache = "fp8" if self.plan.kv_format == "fp8" else "bf16"
        row = self._choose(
            "prefill_attention",
            stand_ins(wanted),
            distance=lambda row: abs(row.head_dim - operation.head_dim) + (0 if row.cache_precision == cache else 1),
            key=(operation.head_dim, cache),
        ).row
        share = roofline.curve_share(operation.prompt_tokens, row.tokens, row.flop_fraction)
        compute_s = operation.flops / (self._flops_per_s(row.precision) * np.maximum(share, 1e-6))
        memory_s = operation.bytes / self._bytes_per_s
        busy = row.t0_us * MICRO + np.maximum(compute_s, memory_s)
        return np.where(np.asarray(operation.flops) > 0, busy, 0.0)

    def link(self, gpus: int) -> tuple[str, float, float]:
        """(kind, bytes/s per direction at its usual share, alpha in s) of the narrowest link among `gpus` GPUs."""
        sheet, assumed = self.gpu.datasheet, self.assumptions
        if sheet.link is not None and gpus <= sheet.link.domain_gpus:
            share = assumed.link_efficiency * sheet.link.gb_per_s_per_direction * GIGA
            return sheet.link.kind, share, assumed.link_alpha_us * MICRO
        if gpus <= sheet.node.gpus:
            size = np.log2(assumed.pcie.gpus)
            most, alpha_us = (
                float(np.interp(np.log2(gpus), size, of)) for of in (assumed.pcie.most_gb_per_s, assumed.pcie.alpha_us)
            )
            reached = min(most, assumed.link_efficiency * sheet.node.pcie_gb_per_s_per_direction)
            return "PCIe", reached * GIGA, alpha_us * MICRO
        return self.inter_node_link()

    def inter_node_link(self) -> tuple[str, float, float]:
        """(kind, bytes/s, alpha in s) of the network between nodes, for the share of one GPU."""
        gbit = self.gpu.datasheet.node.inter_node_gbit_per_s_per_gpu
        if gbit is None:
            raise UntimedError(
                Fault(
                    f"{self.gpu.name}'s profile states no network between nodes",
                    field="datasheet.node.inter_node_gbit_per_s_per_gpu",
                )
            )
        share = self.assumptions.inter_node_efficiency * gbit * GIGA / BITS_PER_BYTE
        return "network", share, self.assumptions.inter_node_alpha_us * MICRO

    def spread(self, operation: Operation) -> tuple[int, int]:
        """(GPUs per node, nodes) over which the group of `operation` is spread."""
        if operation.gpus * operation.apart <= self.gpu.datasheet.island_gpus:
            return operation.gpus, 1
        within = max(1, self.gpu.datasheet.island_gpus // operation.apart)
        return within, -(-operation.gpus // within)

    def _collective(self, operation: Operation) -> Numeric:
        """Seconds of a collective: over the GPUs of each node, then over the network, each GPU with its share of the message."""
        within, nodes = self.spread(operation)
        busy_s: Numeric = self._island_collective(replace(operation, gpus=within)) if within > 1 else 0.0
        if nodes > 1:
            _, bytes_per_s, alpha_s = self.inter_node_link()
            busy_s = busy_s + roofline.ring_s(
                operation.message_bytes / within,
                operation.rule,
                nodes,
                alpha_s=alpha_s * roofline.hops(operation.rule, nodes),
                bytes_per_s=bytes_per_s,
            )
        return np.where(np.asarray(operation.message_bytes) > 0, busy_s, 0.0)

    def _dispatch_directly(self, operation: Operation) -> Numeric:
        """Seconds in which each token goes straight to each of its experts; the other way where a step has too many tokens for that.

        Engines hold the buffers of the direct way for some hundred tokens a GPU, and take the other way for more.
        """
        _, nodes = self.spread(operation)
        sent, between = operation.fan_out, operation.fan_out * (nodes - 1) / nodes
        directly = self._dispatched_s(operation, self.assumptions.dispatch.low_latency, sent - between, between)
        return np.minimum(directly, self._dispatch_by_node(operation))

    def _dispatch_by_node(self, operation: Operation) -> Numeric:
        """Seconds in which each token goes once to every node that has one of its experts, and on from there over the link."""
        _, nodes = self.spread(operation)
        between = roofline.reached(nodes, operation.fan_out) * (nodes - 1) / nodes
        copies = roofline.reached(operation.gpus, operation.fan_out)
        return self._dispatched_s(operation, self.assumptions.dispatch.high_throughput, copies, between)

    def _dispatched_s(self, operation: Operation, way: DispatchWay, here: float, between: float) -> Numeric:
        """Seconds of `here` copies of a message over the link and `between` over the network at once."""
        link = self.gpu.datasheet.link
        share = way.link.get(self.gpu.architecture, way.link["any"])
        pcie = self.gpu.datasheet.node.pcie_gb_per_s_per_direction
        per_direction = link.gb_per_s_per_direction if link is not None else pcie
        moved_s = here * operation.message_bytes / (share * per_direction * GIGA)
        if not between:
            return MICRO * way.alpha_us + moved_s
        _, usual, _ = self.inter_node_link()
        network = usual / self.assumptions.inter_node_efficiency * way.network
        return MICRO * way.alpha_between_us + np.maximum(moved_s, between * operation.message_bytes / network)

    def _island_collective(self, operation: Operation) -> Numeric:
        link = self.gpu.datasheet.link
        extent = operation.gpus * operation.apart
        rows = [
            row
            for row in self.gpu.efficiency
            if row.operation == operation.rule and row.gpus >= operation.gpus  # type: ignore[union-attr]
        ]
        plain = self.settings.collectives == "nccl"  # rows of engine `any` are NCCL's own
        rows = [row for row in rows if not plain or row.engine == "any"]
        if link is not None and extent <= link.domain_gpus and rows:
            row = self._choose(
                operation.rule,
                ("any",),
                distance=lambda row: (row.gpus, row.engine == "any" and not plain),
                accept=lambda row: row.gpus >= operation.gpus and (row.engine == "any" or not plain),
                key=(operation.gpus,),
            ).row
            return roofline.measured_s(operation.message_bytes, row.kib, row.us)
        _, bytes_per_s, alpha_s = self.link(extent)
        return roofline.ring_s(
            operation.message_bytes, operation.rule, operation.gpus, alpha_s=alpha_s, bytes_per_s=bytes_per_s
        )

    def _send(self, operation: Operation) -> Numeric:
        crosses = operation.gpus * (operation.count + 1) > self.gpu.datasheet.island_gpus
        _, bytes_per_s, alpha_s = self.inter_node_link() if crosses else self.link(operation.gpus * 2)
        return roofline.send_s(operation.message_bytes, alpha_s=alpha_s, bytes_per_s=bytes_per_s)
