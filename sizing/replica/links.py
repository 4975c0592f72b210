"""Time of messages between the GPUs of a replica, over a node's link, PCIe, or the network between nodes.

The message of a collective is the full tensor: what every rank holds after an all-reduce or an all-gather. In a ring
each GPU sends 2(n-1)/n of it for an all-reduce, and (n-1)/n for other collectives.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sizing.catalog.shelf import only
from sizing.model.attention import Numeric
from sizing.model.operations import Operation
from sizing.replica.kernel_rows import KernelRows
from sizing.specs.engine_time import FusedAllReduce, OneShot
from sizing.specs.errors import Fault, UntimedError
from sizing.specs.gpu import Assumptions, CollectiveRow, DispatchWay, Gpu
from sizing.specs.units import BITS_PER_BYTE, GIGA, KIB, MIB, MICRO


def traffic_factor(operation: str, gpus: int) -> float:
    """Share of the message that each GPU sends over its link."""
    passes = 2 if operation == "all_reduce" else 1
    return passes * (gpus - 1) / gpus


def ring_s(message_bytes: Numeric, operation: str, gpus: int, *, alpha_s: float, bytes_per_s: float) -> Numeric:
    """Seconds of a collective from latency and bus bandwidth: alpha + factor*bytes/bandwidth."""
    return alpha_s + traffic_factor(operation, gpus) * message_bytes / bytes_per_s


def measured_s(message_bytes: Numeric, kib: tuple[float, ...], us: tuple[float, ...]) -> Numeric:
    """Seconds of a collective between measured points, log-log; flat below the first, linear in bytes above the last."""
    size = np.maximum(np.asarray(message_bytes, dtype=float), 1.0)
    last_bytes = kib[-1] * KIB
    inside = np.interp(np.log(size), np.log(np.asarray(kib) * KIB), np.log(np.asarray(us) * 1e-6))
    seconds: Numeric = np.exp(inside) * np.maximum(1.0, size / last_bytes)
    return seconds


def hops(operation: str, nodes: int) -> int:
    """Messages that follow one another in a tree collective over nodes; an all-reduce goes up and down the tree."""
    return (2 if operation == "all_reduce" else 1) * math.ceil(math.log2(nodes))


def reached(places: int, experts: int) -> float:
    """Expected number of ranks or nodes with a token's experts under random routing: n*(1-(1-1/n)^k)."""
    return places * (1 - (1 - 1 / places) ** experts)


def send_s(message_bytes: Numeric, *, alpha_s: float, bytes_per_s: float) -> Numeric:
    """Seconds to hand a message to one other GPU."""
    return alpha_s + message_bytes / bytes_per_s


class Links(NamedTuple):
    """The links of a GPU, with the measured rows of its collectives.

    `plain` restricts the rows to the plain library's, for engines that use no other collectives. `fused` says which
    all-reduces include the residual's norm, `one_shot` which ones send the whole message to every GPU.
    """

    gpu: Gpu
    rows: KernelRows
    plain: bool
    fused: FusedAllReduce | None = None
    one_shot: OneShot | None = None

    def link(self, gpus: int) -> tuple[str, float, float]:
        """(kind, bytes/s per direction at its usual share, alpha in s) of the slowest link among `gpus` GPUs."""
        sheet, assumed = self.gpu.datasheet, only(Assumptions)
        if sheet.link is not None and gpus <= sheet.link.domain_gpus:
            share = assumed.link_efficiency * sheet.link.gb_per_s_per_direction * GIGA
            return sheet.link.kind, share, assumed.link_alpha_us * MICRO
        if gpus <= sheet.node.gpus:
            pcie, size = assumed.pcie, np.log2(assumed.pcie.gpus)
            most, share, alpha_us = (
                float(np.interp(np.log2(gpus), size, of)) for of in (pcie.most_gb_per_s, pcie.most_share, pcie.alpha_us)
            )
            reached = min(most, share * sheet.node.pcie_gb_per_s_per_direction)
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
        share = only(Assumptions).inter_node_efficiency * gbit * GIGA / BITS_PER_BYTE
        return "network", share, only(Assumptions).inter_node_alpha_us * MICRO

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
            busy_s = busy_s + ring_s(
                operation.message_bytes / within,
                operation.rule,
                nodes,
                alpha_s=alpha_s * hops(operation.rule, nodes),
                bytes_per_s=bytes_per_s,
            )
        return np.where(np.asarray(operation.message_bytes) > 0, busy_s, 0.0)

    def dispatch_directly(self, operation: Operation) -> Numeric:
        """Seconds to send each token directly to each of its experts, or by node if this is faster.

        Engines have buffers for some hundred tokens per GPU to send directly; they send larger steps by node.
        """
        _, nodes = self.spread(operation)
        sent, between = operation.fan_out, operation.fan_out * (nodes - 1) / nodes
        directly = self._dispatched_s(operation, only(Assumptions).dispatch.low_latency, sent - between, between)
        return np.minimum(directly, self.dispatch_by_node(operation))

    def dispatch_by_node(self, operation: Operation) -> Numeric:
        """Seconds to send each token once to every node with one of its experts, and from there over the link."""
        _, nodes = self.spread(operation)
        between = reached(nodes, operation.fan_out) * (nodes - 1) / nodes
        copies = reached(operation.gpus, operation.fan_out)
        return self._dispatched_s(operation, only(Assumptions).dispatch.high_throughput, copies, between)

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
        network = usual / only(Assumptions).inter_node_efficiency * way.network
        return MICRO * way.alpha_between_us + np.maximum(moved_s, between * operation.message_bytes / network)

    def _island_collective(self, operation: Operation) -> Numeric:
        link = self.gpu.datasheet.link
        extent = operation.gpus * operation.apart
        row = self.rows.collective(operation.rule, operation.gpus, self.plain)
        if link is not None and extent <= link.domain_gpus and row is not None:
            measured = self._one_shot_s(operation, row)
            return self._fused_s(operation, measured) + self._slower_link_s(operation)
        _, bytes_per_s, alpha_s = self.link(extent)
        return ring_s(operation.message_bytes, operation.rule, operation.gpus, alpha_s=alpha_s, bytes_per_s=bytes_per_s)

    def _slower_link_s(self, operation: Operation) -> Numeric:
        """What the link adds to a collective that was measured over a faster link."""
        own, measured = self.gpu.datasheet.link, self.rows.exchanging.datasheet.link
        if own is None or measured is None or own.gb_per_s_per_direction == measured.gb_per_s_per_direction:
            return 0.0
        more = 1 / own.gb_per_s_per_direction - 1 / measured.gb_per_s_per_direction
        sent = traffic_factor(operation.rule, operation.gpus) * operation.message_bytes
        return sent * more / (only(Assumptions).link_efficiency * GIGA)

    def _one_shot_s(self, operation: Operation, row: CollectiveRow) -> Numeric:
        """Seconds by the measured row; few tokens' bytes beyond the row's largest one-shot message go to each GPU."""
        measured = measured_s(operation.message_bytes, row.kib, row.us)
        rule, link = self.one_shot, self.gpu.datasheet.link
        if operation.rule != "all_reduce" or rule is None or link is None or operation.gpus not in rule.gpus:
            return measured
        most_bytes = rule.measured_mib[rule.gpus.index(operation.gpus)] * MIB
        sent = (operation.gpus - 1) * (operation.message_bytes - most_bytes)
        _, bytes_per_s, _ = self.link(operation.gpus)
        one_shot_s = measured_s(most_bytes, row.kib, row.us) + sent / bytes_per_s
        tokens = np.asarray(operation.rows)
        few = (tokens > 0) & (tokens <= rule.most_tokens)
        return np.where(few & (sent > 0), np.maximum(measured, one_shot_s), measured)

    def _fused_s(self, operation: Operation, alone_s: Numeric) -> Numeric:
        """Seconds of an all-reduce that alone takes `alone_s`; for small messages a fused kernel also computes the norm."""
        fused = self.fused if operation.rule == "all_reduce" else None
        row = self.rows.collective(operation.rule, operation.gpus, False, fused.rows_of) if fused is not None else None
        if fused is None or row is None:
            return alone_s
        norms_too = np.asarray(operation.message_bytes) <= fused.holds(operation.gpus) * MIB
        return np.where(norms_too, measured_s(operation.message_bytes, row.kib, row.us), alone_s)

    def send(self, operation: Operation) -> Numeric:
        """Seconds to send a message to the next stage of a pipeline."""
        crosses = operation.gpus * (operation.count + 1) > self.gpu.datasheet.island_gpus
        _, bytes_per_s, alpha_s = self.inter_node_link() if crosses else self.link(operation.gpus * 2)
        return send_s(operation.message_bytes, alpha_s=alpha_s, bytes_per_s=bytes_per_s)
