"""Time of messages between the GPUs of a replica, over a node's link, PCIe, or the network between nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sizing.model.attention.terms import Numeric
from sizing.model.operations import Operation
from sizing.replica import roofline
from sizing.replica.rows import KernelRows
from sizing.specs.engine import FusedAllReduce
from sizing.specs.errors import Fault, UntimedError
from sizing.specs.gpu import Assumptions, DispatchWay, Gpu
from sizing.specs.units import BITS_PER_BYTE, GIGA, MIB, MICRO


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a GPU, with the measured rows of its collectives.

    `plain` restricts the rows to the plain library's, for engines that use no other collectives. `fused` says which
    all-reduces include the residual's norm.
    """

    gpu: Gpu
    assumptions: Assumptions
    rows: KernelRows
    plain: bool
    fused: FusedAllReduce | None = None

    def link(self, gpus: int) -> tuple[str, float, float]:
        """(kind, bytes/s per direction at its usual share, alpha in s) of the slowest link among `gpus` GPUs."""
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
        """(kind, bytes/s, alpha in s) of one GPU's share of the network between nodes."""
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
        """(GPUs per node, nodes) that the group of `operation` spans."""
        if operation.gpus * operation.apart <= self.gpu.datasheet.island_gpus:
            return operation.gpus, 1
        within = max(1, self.gpu.datasheet.island_gpus // operation.apart)
        return within, -(-operation.gpus // within)

    def collective(self, operation: Operation) -> Numeric:
        """Seconds of a collective: first among the GPUs of each node, then over the network, where each GPU has a share."""
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

    def dispatch_directly(self, operation: Operation) -> Numeric:
        """Seconds to send each token directly to each of its experts, or by node if this is faster.

        Engines have buffers for some hundred tokens per GPU to send directly; they send larger steps by node.
        """
        _, nodes = self.spread(operation)
        sent, between = operation.fan_out, operation.fan_out * (nodes - 1) / nodes
        directly = self._dispatched_s(operation, self.assumptions.dispatch.low_latency, sent - between, between)
        return np.minimum(directly, self.dispatch_by_node(operation))

    def dispatch_by_node(self, operation: Operation) -> Numeric:
        """Seconds to send each token once to every node with one of its experts, and from there over the link."""
        _, nodes = self.spread(operation)
        between = roofline.reached(nodes, operation.fan_out) * (nodes - 1) / nodes
        copies = roofline.reached(operation.gpus, operation.fan_out)
        return self._dispatched_s(operation, self.assumptions.dispatch.high_throughput, copies, between)

    def _dispatched_s(self, operation: Operation, way: DispatchWay, here: float, between: float) -> Numeric:
        """Seconds to send `here` copies of a message over the link and `between` copies over the network at the same time."""
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
        row = self.rows.collective(operation.rule, operation.gpus, self.plain)
        if link is not None and extent <= link.domain_gpus and row is not None:
            return self._fused_s(operation, roofline.measured_s(operation.message_bytes, row.kib, row.us))
        _, bytes_per_s, alpha_s = self.link(extent)
        return roofline.ring_s(
            operation.message_bytes, operation.rule, operation.gpus, alpha_s=alpha_s, bytes_per_s=bytes_per_s
        )

    def _fused_s(self, operation: Operation, alone_s: Numeric) -> Numeric:
        """Seconds of an all-reduce that alone takes `alone_s`; for small messages a fused kernel also computes the norm."""
        fused = self.fused if operation.rule == "all_reduce" else None
        row = self.rows.collective(operation.rule, operation.gpus, False, fused.rows_of) if fused is not None else None
        if fused is None or row is None:
            return alone_s
        norms_too = np.asarray(operation.message_bytes) <= fused.holds(operation.gpus) * MIB
        return np.where(norms_too, roofline.measured_s(operation.message_bytes, row.kib, row.us), alone_s)

    def send(self, operation: Operation) -> Numeric:
        """Seconds to send a message to the next stage of a pipeline."""
        crosses = operation.gpus * (operation.count + 1) > self.gpu.datasheet.island_gpus
        _, bytes_per_s, alpha_s = self.inter_node_link() if crosses else self.link(operation.gpus * 2)
        return roofline.send_s(operation.message_bytes, alpha_s=alpha_s, bytes_per_s=bytes_per_s)
