"""Which roles a quantised checkpoint leaves in 16 bit, from the modules its lists exclude.

Lists name modules as globs, as regular expressions (`re:`), or plainly, one layer at a time or all at once. A
role counts as kept only where the lists cover every layer that has it; what stays 16 bit in a few layers is
quantised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sizing.specs.model import DenseMlp, LayerKind, MoeMlp, Role

# Every engine and toolkit leaves these in 16 bit unless a checkpoint says otherwise.
ALWAYS_KEPT: frozenset[Role] = frozenset({"embedding", "lm_head", "norm", "router"})
OUTSIDE = ("mtp", "visi", "visual", "mm_", "multi_modal", "audio", "patch_merge")
MLP_ROLES: frozenset[Role] = frozenset({"dense_mlp", "expert", "shared_expert", "router"})

_LAYER = re.compile(r"(?:^|[.*])(?:layers|h|blocks)\.(?P<index>[^.]+?)(?:\.(?P<tail>.+))?$")
_PROJECTION = re.compile(r"(?:^|\.)(?P<name>[a-z0-9_]*proj[a-z_]*|fc[12]|w[123]|dense[a-z0-9_]*)$")
_OUTPUTS = frozenset({"o_proj", "out_proj", "down_proj", "dense", "fc2", "w2", "dense_4h_to_h"})
_REGEX_TO_GLOB = ((r"\.", "."), (".*", "*"), ("^", ""), ("$", ""))
_REGEX_MARK = "re:"


@dataclass(frozen=True, slots=True)
class _Part:
    """One module that a list names: its layer, its role, and the projection where only that one is named."""

    layer: int
    role: Role
    projection: str | None


def roles_of(layer: LayerKind) -> frozenset[Role]:
    """Return the roles that one layer has."""
    found: set[Role] = {"norm"}
    if layer.mixer is not None:
        found.add("attention")
    for mlp in layer.mlps:
        if isinstance(mlp, DenseMlp):
            found.add("dense_mlp")
        elif isinstance(mlp, MoeMlp):
            found |= {"expert", "router"}
            if mlp.shared_intermediate:
                found.add("shared_expert")
    return frozenset(found)


def kept_roles(excluded: Iterable[str], layers: Sequence[LayerKind]) -> frozenset[Role]:
    """Return the roles that stay in 16 bit in every layer that has them, the usual ones included."""
    present = [roles_of(layer) for layer in layers]
    parts = {part for pattern in excluded for part in _parts(pattern, present)}
    whole = {(part.layer, part.role) for part in parts if part.projection is None}
    outputs = {(part.layer, part.role) for part in parts if part.projection in _OUTPUTS}
    inputs = {(part.layer, part.role) for part in parts if part.projection and part.projection not in _OUTPUTS}
    covered = whole | (outputs & inputs)
    kept = {
        role
        for role in frozenset().union(*present)
        if all((index, role) in covered for index, roles in enumerate(present) if role in roles)
    }
    return ALWAYS_KEPT | frozenset(kept)


def _parts(pattern: str, present: Sequence[frozenset[Role]]) -> Iterator[_Part]:
    name = _as_glob(pattern)
    if any(word in name.lower() for word in OUTSIDE):
        return
    match = _LAYER.search(name)
    index, tail = (match["index"], match["tail"] or "") if match else ("*", name)
    if match is None and not tail.strip("*."):
        return
    alternatives = "(" in tail
    projection = None if alternatives else _PROJECTION.search(tail.rstrip("*."))
    for layer, roles in enumerate(present):
        if fnmatchcase(str(layer), index):
            for role in _named_roles(tail.lower(), roles):
                yield _Part(layer, role, projection["name"] if projection else None)


def _as_glob(pattern: str) -> str:
    if not pattern.startswith(_REGEX_MARK):
        return pattern
    text = pattern.removeprefix(_REGEX_MARK)
    for regex, glob in _REGEX_TO_GLOB:
        text = text.replace(regex, glob)
    return text


def _named_roles(tail: str, roles: frozenset[Role]) -> frozenset[Role]:
    """Return the roles of one layer that a module's name covers; an empty name covers the layer."""
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
        # Beside routed experts a module named `mlp` is the dense one; alone, it is all that the layer has.
        return roles & {"dense_mlp"} or (frozenset() if _PROJECTION.search(name) or "(" in name else roles & MLP_ROLES)
    return frozenset()
