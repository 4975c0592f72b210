"""The precision of each weight of a checkpoint, from its lists of modules, added up by role.

Lists name modules by globs, regular expressions (`re:`) or plain names, for one layer or for all layers. Some leave their modules
in 16 bit, others give them their own precision. A role that is in 16 bit in every layer counts as kept. For a mixed role the
share of each precision is reported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from sizing.catalog.config.fields import ConfigKeys
from sizing.catalog.shelf import only
from sizing.specs.model import (
    CompressedAttention,
    DenseMlp,
    LayerKind,
    LinearAttention,
    MlaAttention,
    MoeMlp,
    Role,
    ShortConv,
    SsmAttention,
    Stored,
)

# Every engine and toolkit leaves these in 16 bit unless a checkpoint states otherwise.
ALWAYS_KEPT: frozenset[Role] = frozenset({"embedding", "lm_head", "norm", "router"})
OUTSIDE = ("mtp", "visi", "visual", "mm_", "multi_modal", "audio", "patch_merge")
MLP_ROLES: frozenset[Role] = frozenset({"dense_mlp", "expert", "shared_expert", "router"})
LEAST_SHARE = 0.002  # smaller shares of a role's weights are not reported

_LAYER = re.compile(r"(?:^|[.*])(?:layers|h|blocks)\.(?P<index>[^.]+?)(?:\.(?P<tail>.+))?$")
_PROJECTION = re.compile(r"(?:^|\.)(?P<name>[a-z0-9_]*proj[a-z_]*|fc[12]|w[123]|wq_[ab]|wo_[ab]|wkv|dense[a-z0-9_]*)$")
_REGEX_TO_GLOB = ((r"\.", "."), (".*", "*"), ("^", ""), ("$", ""))
_REGEX_MARK = "re:"

Rule = tuple[str, str | None]  # a module's name or pattern, and its precision; None for 16 bit


class _Cell(NamedTuple):
    """A projection of one layer."""

    layer: int
    role: Role
    projection: str


def projections(layer: LayerKind, hidden_size: int) -> dict[tuple[Role, str], int]:
    """The number of weights of one layer by role and projection, without norms; routers count as 0."""
    found: dict[tuple[Role, str], int] = {}
    mixer = layer.mixer
    if isinstance(mixer, MlaAttention):
        key, value = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim, mixer.v_head_dim
        rank, heads = mixer.q_lora_rank, mixer.q_heads
        queries = {"q_a_proj": hidden_size * rank, "q_b_proj": rank * heads * key} if rank else {}
        sizes = queries or {"q_proj": hidden_size * heads * key}
        sizes["kv_a_proj"] = hidden_size * (mixer.kv_lora_rank + mixer.qk_rope_head_dim)
        sizes["kv_b_proj"] = mixer.kv_lora_rank * heads * (mixer.qk_nope_head_dim + value)
        sizes["o_proj"] = heads * value * hidden_size
    elif isinstance(mixer, LinearAttention):
        keys, values = mixer.key_heads * mixer.key_head_dim, mixer.value_heads * mixer.value_head_dim
        sizes = {"in_proj": 2 * hidden_size * (keys + values), "o_proj": values * hidden_size}
    elif isinstance(mixer, SsmAttention):
        inner = mixer.heads * mixer.head_dim
        shared = 2 * mixer.groups * mixer.state_size + mixer.heads
        sizes = {"in_proj": hidden_size * (2 * inner + shared), "o_proj": inner * hidden_size}
    elif isinstance(mixer, CompressedAttention):
        width = mixer.q_heads * mixer.head_dim
        sizes = {"q_a_proj": hidden_size * mixer.q_lora_rank, "q_b_proj": mixer.q_lora_rank * width}
        sizes["kv_a_proj"] = hidden_size * mixer.head_dim
        sizes["o_proj"] = mixer.o_lora_rank * (width + mixer.o_groups * hidden_size)
    elif isinstance(mixer, ShortConv):
        sizes = {"in_proj": 3 * hidden_size * mixer.width, "o_proj": hidden_size * mixer.width}
    elif mixer is not None:
        width, kept = mixer.q_heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
        sizes = {"q_proj": width * (1 + mixer.output_gate), "k_proj": kept, "v_proj": kept, "o_proj": width}
    else:
        sizes = {}
    found |= {("attention", name): size for name, size in sizes.items()}
    for mlp in layer.mlps:
        found |= _mlp_projections(mlp)
    return found


def _mlp_projections(mlp: DenseMlp | MoeMlp) -> dict[tuple[Role, str], int]:
    names = ("gate_proj", "up_proj", "down_proj") if mlp.gated else ("up_proj", "down_proj")
    if isinstance(mlp, DenseMlp):
        return {("dense_mlp", name): mlp.intermediate for name in names}
    shared = {("shared_expert", name): mlp.shared_intermediate for name in names} if mlp.shared_intermediate else {}
    experts = {("expert", name): mlp.experts * mlp.intermediate for name in names}
    return {**experts, **shared, ("router", ""): 0}  # type: ignore[dict-item]


def stored(
    rules: Iterable[Rule], base: str | None, layers: Sequence[LayerKind], hidden_size: int
) -> tuple[str | None, frozenset[Role], tuple[Stored, ...]]:
    """The precision of most weights, the roles in 16 bit, and the shares of roles with any other storage.

    `base` is the precision of weights that no rule names. If two rules name a projection, the later one holds.
    """
    present = [projections(layer, hidden_size) for layer in layers]
    cells: dict[_Cell, str | None] = {
        _Cell(index, role, name): None if role in ALWAYS_KEPT else base
        for index, sizes in enumerate(present)
        for role, name in sizes
    }
    for pattern, precision in rules:
        for cell in _cells(pattern, present):
            if cell.role not in ALWAYS_KEPT:
                cells[cell] = precision
    by_role: dict[Role, Counter[str | None]] = {}
    for cell, precision in cells.items():
        by_role.setdefault(cell.role, Counter())[precision] += present[cell.layer][cell.role, cell.projection]
    # The precision of the experts is that of the checkpoint: they are most of it and have their own kernel.
    ranked = [by_role[role] for role in ("expert", "dense_mlp", "attention", "shared_expert") if role in by_role]
    main = next((name for sizes in ranked for name, _ in sizes.most_common() if name is not None), base)
    kept = frozenset(role for role, sizes in by_role.items() if not any(n for name, n in sizes.items() if name))
    return main, ALWAYS_KEPT | kept, tuple(_others(by_role, main, kept))


def _others(by_role: Mapping[Role, Counter[str | None]], main: str | None, kept: frozenset[Role]) -> Iterator[Stored]:
    for role in sorted(by_role.keys() - kept):
        whole = by_role[role].total()
        for precision, size in by_role[role].items():
            if precision != main and size >= LEAST_SHARE * whole:
                yield Stored(role, precision, size / whole)


def _cells(pattern: str, present: Sequence[Mapping[tuple[Role, str], int]]) -> Iterator[_Cell]:
    """The projections that a module's name or pattern covers."""
    name = _as_glob(pattern)
    if any(word in name.lower() for word in OUTSIDE):
        return
    match = _LAYER.search(name)
    index, tail = (match["index"], match["tail"] or "") if match else ("*", name)
    if match is None and not tail.strip("*."):
        return
    found = None if "(" in tail else _PROJECTION.search(tail.strip("*."))
    wanted = None if found is None else set(only(ConfigKeys).projections.get(found["name"], found["name"]).split())
    for layer, sizes in enumerate(present):
        if fnmatchcase(str(layer), index):
            roles = _named_roles(tail.lower(), frozenset(role for role, _ in sizes))
            for role, projection in sizes:
                if role in roles and (wanted is None or projection in wanted):
                    yield _Cell(layer, role, projection)


def _as_glob(pattern: str) -> str:
    if not pattern.startswith(_REGEX_MARK):
        return pattern
    text = pattern.removeprefix(_REGEX_MARK)
    for regex, glob in _REGEX_TO_GLOB:
        text = text.replace(regex, glob)
    return text


def _named_roles(tail: str, roles: frozenset[Role]) -> frozenset[Role]:
    """The roles of one layer covered by a module's name; an empty name covers the layer."""
    name = tail.strip("*.")
    last = name.rpartition(".")[2]
    if not name:
        return roles
    if "norm" in name or "conv" in name or "indexer" in name or "bias" in last:
        return frozenset()
    if last in ("gate", "router") or "router" in name or name.endswith("shared_expert_gate"):
        return roles & {"router"}
    if "shared_expert" in name or "share_expert" in name:
        return roles & {"shared_expert"}
    if "expert" in name:
        return roles & {"expert"}
    if "attn" in name or "attention" in name:
        return roles & {"attention"}
    if "mixer" in name:
        return roles & {"attention"} or roles & MLP_ROLES
    if any(word in name for word in ("mlp", "ffn", "feed_forward", "block_sparse_moe")):
        # In a layer with routed experts a module named `mlp` is the dense MLP; otherwise it is the layer's only MLP.
        return roles & {"dense_mlp"} or (frozenset() if _PROJECTION.search(name) or "(" in name else roles & MLP_ROLES)
    # A projection alone, such as `down_proj`, means every role that has it.
    return roles if _PROJECTION.fullmatch(name) else frozenset()
