"""A GPU as its profile states it: datasheet peaks (dense only), measured efficiency, prices; all with sources."""

import re
from datetime import date
from itertools import pairwise
from typing import Annotated, Literal

from sizing.specs.engine_time import OwnRuns
from sizing.specs.frozen import Frozen
from sizing.specs.spec import After, Constraint, Spec, Tagged
from sizing.specs.values import (
    Bandwidth,
    Gibibytes,
    Gigabytes,
    LinkBandwidth,
    Mebibytes,
    NetworkRate,
    NonNegative,
    OneFile,
    PcieBandwidth,
    Positive,
    PositiveInt,
    Sourced,
    Text,
    Tflops,
    UsdPerHour,
    Watts,
    above,
    within,
)

# A kernel's fitted share of a peak may exceed 1 where the fit over-counts traffic (L2 hits, skewed experts).
Efficiency = Annotated[float, above(0, 2)]

# Of a matrix product no traffic is counted against the dense peak, and no kernel exceeds it.
PeakShare = Annotated[float, above(0, 1)]

# How sharply a product changes from one limit to the other: 1 adds the two times, 20 is almost their maximum.
Sharpness = Annotated[float, within(0.1, 1_000)]

# A size marketed in GB is at most that many GiB, with room for rounding.
MARKETED_SLACK = 1.01
MIB_PER_GIB = 1024
BRIDGED_GPUS = 2  # a bridge joins two GPUs
# FP16 may be slowed down for a market, but BF16 is never more than this many times as fast.
MOST_BF16_PER_FP16 = 4


def _refuse(wrong: list[str]) -> None:
    """Raise ValueError if `wrong` is not empty."""
    if wrong:
        raise ValueError("; ".join(wrong))


def _curve_faults(**columns: tuple[float, ...]) -> list[str]:
    """List what is wrong with columns that should be curves over the first one: no points, unequal lengths, wrong order."""
    (base, along), *_ = columns.items()
    if not along:
        return [f"{base} is empty; a curve has at least one point"]
    others = {name: len(values) for name, values in columns.items() if len(values) != len(along)}
    wrong = [f"{name} has {count} values, {base} has {len(along)}" for name, count in others.items()]
    if any(later <= earlier for earlier, later in pairwise(along)):
        wrong.append(f"{base} must ascend")
    return wrong


class Memory(Spec):
    """Device memory. `cuda_visible_gib` is what the CUDA (or HIP) runtime reports, the base of every engine's budget."""

    marketed_gb: Gigabytes
    cuda_visible_gib: Gibibytes
    nvidia_smi_mib: Mebibytes | None = None
    bandwidth_gb_per_s: Bandwidth
    type: Text

    def validate(self) -> None:
        """Refuse more memory than is marketed."""
        most_gib = self.marketed_gb * MARKETED_SLACK
        stated = {
            "cuda_visible_gib": (self.cuda_visible_gib, 1),
            "nvidia_smi_mib": (self.nvidia_smi_mib or 0, MIB_PER_GIB),
        }
        over = {name: value for name, (value, per_gib) in stated.items() if value / per_gib > most_gib}
        size = f"is more than the marketed size, {self.marketed_gb:g}"
        _refuse([f"{name} {value:g} {size}" for name, value in over.items()])


class Link(Spec):
    """The GPU-to-GPU link. `domain_gpus` is how many GPUs it joins at full speed (2 for a bridge, 72 for NVL72)."""

    kind: Text
    gb_per_s_per_direction: LinkBandwidth
    domain_gpus: PositiveInt


class Node(Spec):
    """The usual server: GPUs in it, the PCIe link of each, and the network share of each towards other nodes."""

    gpus: PositiveInt
    pcie_gb_per_s_per_direction: PcieBandwidth
    inter_node_gbit_per_s_per_gpu: NetworkRate | None = None


class DenseTflops(Spec):
    """Dense peaks (no 2:4 sparsity) in TFLOPS or TOPS. Precisions that the hardware lacks are left out."""

    fp32: Tflops
    tf32: Tflops | None = None
    fp16: Tflops
    bf16: Tflops | None = None
    fp8: Tflops | None = None
    int8: Tflops | None = None
    fp4: Tflops | None = None

    def validate(self) -> None:
        """Refuse a narrower format that is slower on the same tensor cores.

        INT8 is not checked because some GPUs cut it down on purpose, FP32 because it runs on other units.
        """
        ordered = (("tf32", self.tf32, "fp16", self.fp16), ("fp16", self.fp16, "fp8", self.fp8), ("fp8", self.fp8, "fp4", self.fp4))  # fmt: skip
        wrong = [
            f"{narrow} {more:g} is below {wide} {less:g}"
            for wide, less, narrow, more in ordered
            if less is not None and more is not None and more < less
        ]
        if self.bf16 is not None and self.bf16 > MOST_BF16_PER_FP16 * self.fp16:
            wrong.append(f"bf16 {self.bf16:g} is more than {MOST_BF16_PER_FP16} times fp16 {self.fp16:g}")
        _refuse(wrong)


class Datasheet(Spec):
    """Vendor facts, with their sources and any doubts about them."""

    memory: Memory
    dense_tflops: DenseTflops
    link: Link | None = None
    node: Node
    tdp_w: Watts
    evidence: Text
    sources: tuple[Text, ...]
    date: Text
    note: Text | None = None

    @property
    def switched(self) -> bool:
        """Whether a link joins all GPUs of a server, instead of PCIe or bridges between a few."""
        return self.link is not None and self.link.domain_gpus > BRIDGED_GPUS

    @property
    def island_gpus(self) -> int:
        """The number of GPUs that reach each other without the inter-node network: a node, or a larger link domain."""
        return max(self.node.gpus, self.link.domain_gpus if self.link else 1)


class _Measured(Spec):
    """The origin of a row of constants and its fit: engine and version, points, error, source."""

    engine: Literal["vllm", "tensorrt-llm", "sglang", "any"]
    version: Text
    points: PositiveInt | None = None
    median_error: NonNegative | None = None
    p90_error: NonNegative | None = None
    source: Text
    date: Text


class FewRows(Spec):
    """Shares that another kernel reaches, which multiplies at most `most` rows without tensor cores."""

    most: PositiveInt
    compute: PeakShare
    memory: Efficiency


class GemmRow(_Measured):
    """t = t0 + ((flops/(peak*compute))^p + (bytes/(bandwidth*memory))^p)^(1/p) for a dense matrix product.

    Up to `few_rows.most` rows the shares are those of `few_rows`.
    """

    operation: Literal["gemm"]
    precision: Text
    t0_us: NonNegative
    compute: PeakShare
    memory: Efficiency
    p: Sharpness
    few_rows: FewRows | None = None


class MoeRow(_Measured):
    """The formula of GemmRow for fused expert products, with the bytes of the experts that a step reads."""

    operation: Literal["moe"]
    precision: Text
    t0_us: NonNegative
    compute: PeakShare
    memory: Efficiency
    p: Sharpness


class DecodeAttentionRow(_Measured):
    """t = t0 + bytes of cache read/(bandwidth*memory), one layer, whole batch. `precision` is that of the cache."""

    operation: Literal["decode_attention"]
    precision: Text
    head_dim: PositiveInt
    t0_us: NonNegative
    memory: Efficiency


class MlaDecodeRow(_Measured):
    """Decode attention over a latent cache, by the number of heads on the GPU: bytes, and FLOPs if there are many heads."""

    operation: Literal["mla_decode"]
    precision: Text
    q_heads: PositiveInt
    t0_us: NonNegative
    memory: Efficiency | None = None
    compute: Efficiency | None = None


class PrefillAttentionRow(_Measured):
    """Share of the dense peak reached by causal attention, against prompt length (`tokens` ascending)."""

    operation: Literal["prefill_attention"]
    precision: Text
    cache_precision: Text
    head_dim: PositiveInt
    t0_us: NonNegative
    compute: Efficiency
    tokens: tuple[PositiveInt, ...]
    flop_fraction: tuple[PeakShare, ...]

    def validate(self) -> None:
        """Refuse columns that are no curve."""
        _refuse(_curve_faults(tokens=self.tokens, flop_fraction=self.flop_fraction))


class CollectiveRow(_Measured):
    """Time `us` of a collective over `gpus` at message sizes `kib` (ascending). Larger messages use alpha and bus bandwidth."""

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    backend: Text
    gpus: PositiveInt
    alpha_us: NonNegative
    bus_gb_per_s: Positive
    kib: tuple[Positive, ...]
    us: tuple[Positive, ...]

    def validate(self) -> None:
        """Refuse columns that are no curve."""
        _refuse(_curve_faults(kib=self.kib, us=self.us))


EfficiencyRow = Annotated[
    GemmRow | MoeRow | DecodeAttentionRow | MlaDecodeRow | PrefillAttentionRow | CollectiveRow,
    Tagged("operation"),
]


# How a GPU-hour is sold. Owners' costs and purchases are not offers and are not compared with offers.
PriceKind = Literal[
    "on-demand", "on-demand list", "spot", "flex-start", "1-year reserved", "3-year reserved", "3-year rental",
    "owner TCO (hyperscaler)", "owner TCO (neocloud)", "purchase",
]  # fmt: skip
Confidence = Literal["high", "medium", "low"]


def _in_calendar(stated: str) -> str:
    """A day, month or year, or a span of these. Raises ValueError for one that no calendar has, or a span that ends before it begins."""
    days = []
    for year, month, day in re.findall(r"([0-9]{4})(?:-([0-9]{2})(?![0-9]))?(?:-([0-9]{2})(?![0-9]))?", stated):
        try:
            days.append(date(int(year), int(month or 1), int(day or 1)))
        except ValueError:
            raise ValueError(f"{stated!r} is no date: months are 01 to 12, and days those of the month") from None
    if days != sorted(days):
        raise ValueError(f"{stated!r} ends before it begins")
    return stated


# A day, a month, a year, or a span of these.
PriceDate = Annotated[
    Text,
    After(_in_calendar),
    Constraint(
        pattern=r"^[0-9]{4}(-[0-9]{2}){0,2}((-| to )[0-9]{4}(-[0-9]{2}){0,2})?$",
        words="a day, month or year, or a span: 2026-11-28, 2026-03 to 2026-07",
    ),
]


class Price(Spec):
    """What one GPU costs an hour (`usd_per_gpu_hour`) or a whole server costs to buy (`purchase_usd`)."""

    provider: Text
    sku: Text
    kind: PriceKind
    usd_per_gpu_hour: UsdPerHour | None = None
    purchase_usd: Positive | None = None
    gpus: PositiveInt
    date: PriceDate
    source: Text
    confidence: Confidence | None = None

    def validate(self) -> None:
        """Refuse an offer without the price of its kind."""
        bought = self.kind == "purchase"
        if (self.purchase_usd is not None, self.usd_per_gpu_hour is not None) == (bought, not bought):
            return
        stated = "purchase_usd" if bought else "usd_per_gpu_hour"
        raise ValueError(f"an offer of kind {self.kind} states {stated}, and no other price")


class Gpu(Spec):
    """One GPU profile, a file of hardware_profiles/gpus, or a profile that `extends` another by `own_runs` of an engine."""

    name: Text
    aliases: tuple[Text, ...] = ()
    vendor: Text
    architecture: Text
    compute_capability: Text
    datasheet: Datasheet
    efficiency: tuple[EfficiencyRow, ...] = ()
    prices: tuple[Price, ...] = ()
    extends: Text | None = None
    own_runs: OwnRuns | None = None

    def __hash__(self) -> int:
        """Hash the name alone, because step times are looked up by GPU and a profile is long."""
        return hash(self.name)


class Slicing(Spec):
    """Multiprocessors of a card and, in `of`, of its slices by sevenths of the card. `name` limits it to cards with that name."""

    architecture: Text
    name: Text = ""
    multiprocessors: PositiveInt
    of: dict[str, PositiveInt]


class Slices(OneFile, Sourced):
    """The file hardware_profiles/_mig.yaml: how cards are cut into slices."""

    FILE = "hardware_profiles/_mig.yaml"

    slices: tuple[Slicing, ...]


class AssumedEfficiency(Sourced):
    """Constants for GPUs without measurements: one set for each architecture, borrowed from the nearest measured relative."""

    architecture: Text
    vendor: Text
    borrowed_from: Text
    efficiency: tuple[EfficiencyRow, ...]


class SmallKernels(Sourced):
    """Norms, rotary embedding, activation, cache write, residual: least time in a CUDA graph, and share of bandwidth."""

    t0_us: NonNegative
    memory: Efficiency


class Launches(Sourced):
    """Kernel launches of a layer's operations in a step without CUDA graph, by the operation's name (1 if not stated)."""

    by_operation: dict[Text, NonNegative]

    def of(self, name: str) -> float:
        """Launches of the operation `name`."""
        return self.by_operation.get(name, 1.0)


class PcieCollectives(Spec):
    """Start-up time of a collective over PCIe, the highest bandwidth of a card, and its share of PCIe, by GPUs of the group (ascending)."""

    gpus: tuple[PositiveInt, ...]
    alpha_us: tuple[NonNegative, ...]
    most_gb_per_s: tuple[Positive, ...]
    most_share: tuple[Positive, ...]


class DispatchWay(Spec):
    """An all-to-all of tokens to their experts: start-up within and between nodes, and shares of link and network speed.

    The keys of `link` are GPU architectures; `any` stands for all others.
    """

    alpha_us: NonNegative
    alpha_between_us: NonNegative
    link: dict[str, Efficiency]
    network: Efficiency


class Dispatch(Sourced):
    """Both all-to-all modes of DeepEP."""

    low_latency: DispatchWay
    high_throughput: DispatchWay


class AssumedEfficiencies(OneFile, Sourced):
    """The file hardware_profiles/_assumed.yaml: efficiencies that stand in for GPUs without measurements."""

    FILE = "hardware_profiles/_assumed.yaml"

    architectures: tuple[AssumedEfficiency, ...]


class Assumptions(OneFile, Sourced):
    """The file hardware_profiles/_general.yaml: constants for every GPU, measured on some."""

    FILE = "hardware_profiles/_general.yaml"

    small_kernels: SmallKernels
    link_efficiency: Efficiency
    link_alpha_us: NonNegative
    pcie: PcieCollectives
    inter_node_efficiency: Efficiency
    inter_node_alpha_us: NonNegative
    dispatch: Dispatch
    weight_only_compute: Efficiency
    launches: Launches


# The measured precisions that stand in for one without a row: same width first, then wider.
STAND_INS = {
    "fp32": ("fp32", "bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "bf16": ("bf16", "fp16"),
    "fp8": ("fp8", "fp8_block", "bf16", "fp16"),
    "fp8_block": ("fp8_block", "fp8", "bf16", "fp16"),
    "int8": ("int8", "fp8", "bf16", "fp16"),
    "nvfp4": ("nvfp4", "fp8", "bf16"),
    "mxfp4_bf16": ("mxfp4_bf16", "int4", "bf16", "fp16"),
    "mxfp4_fp8": ("mxfp4_fp8", "nvfp4", "fp8", "bf16"),
}


def stand_ins(precision: str) -> tuple[str, ...]:
    """The precisions whose rows may time `precision`: itself first, then its substitutes."""
    return STAND_INS.get(precision, (precision, "bf16"))


class GpuType(Frozen):
    """A GPU type under consideration, with the id of its profile and its price for planning.

    `shares_name` is set if another type has the same name, for example a profile and a user's copy of it. Where the price is the
    median of known prices, `price_providers` is the number of providers.
    """

    id: str
    gpu: Gpu
    usd_per_gpu_hour: float | None
    price_source: str | None
    shares_name: bool = False
    price_providers: int | None = None

    @property
    def name(self) -> str:
        """The name to show, with the id if another type has the same name."""
        if self.shares_name:
            return f"{self.gpu.name} ({self.id})"
        return self.gpu.name if self.gpu.own_runs is None else f"{self.gpu.name}, own runs"
