"""Optimisations that a user asks for, including separate pools for prefill and decode. An absent optimisation is off.

Their effect on weights, cache and operations is in `sizing.model.extras`.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from sizing.specs.engine import Backend, MostSequences, TokensOfStep
from sizing.specs.errors import nearest
from sizing.specs.spec import Before, Constraint, Spec
from sizing.specs.units import MOST_DURATION_S, parse_share, plain_float
from sizing.specs.values import (
    MOST_GROUP,
    AnyCase,
    AsDuration,
    Flag,
    GroupSize,
    OneFile,
    PositiveInt,
    ShareOfAll,
    Sourced,
    Text,
    above,
)

SEARCHED = "auto"  # the search chooses both pools
POOLS_FORM = (
    "auto, or prefill=POOL,decode=POOL with POOL = [COUNTx][GPU][:LAYOUT], as prefill=h100-sxm:tp2,decode=h200-sxm:tp4 "
    "or prefill=3xtp2,decode=tp4pp2"
)
MOST_REPLICAS = 4096
PHASES = ("prefill", "decode")
_COUNTED = re.compile(r"(\d+)x(.*)", re.DOTALL)
_LAYOUT = re.compile(r"(?:(?:tp|pp|ep|dp|cp|dcp)\d+)+")
_SIZE = re.compile(r"(tp|pp|ep|dp|dcp|cp)(\d+)")


def _pool(text: str) -> dict[str, Any]:
    """Read `2xh100-sxm:tp4pp2`. Any part may be absent."""
    found: dict[str, Any] = {}
    rest = text.strip()
    if counted := _COUNTED.fullmatch(rest):
        found["replicas"], rest = int(counted[1]), counted[2]
        if not 0 < found["replicas"] <= MOST_REPLICAS:
            raise ValueError(f"{text.strip()!r} counts {counted[1]} replicas, from 1 to {MOST_REPLICAS:,} are possible")
    name, _, layout = rest.rpartition(":")
    if not name and not layout:
        return found
    if not _LAYOUT.fullmatch(layout.strip().lower()):
        if name:
            raise ValueError(f"{layout!r} is no layout such as tp4pp2; the form is {POOLS_FORM}")
        return found | {"gpu": layout.strip()}
    sizes = _SIZE.findall(layout.lower())
    if len({size for size, _ in sizes}) < len(sizes):
        raise ValueError(f"{layout!r} states a size twice; the form is {POOLS_FORM}")
    for size, count in sizes:
        if not 0 < int(count) <= MOST_GROUP:
            raise ValueError(f"{text.strip()!r} has {size} {count}, from 1 to {MOST_GROUP:,} are possible")
    found |= {size: int(count) for size, count in sizes}
    return found | ({"gpu": name.strip()} if name.strip() else {})


def read_pools(value: Any) -> Any:
    """Accept `auto` and `prefill=h100-sxm:tp2,decode=h200-sxm:tp4`. The search chooses a pool that is absent."""
    if not isinstance(value, str):
        return value
    if value.strip().lower() == SEARCHED:
        return {}
    found: dict[str, Any] = {}
    for part in value.split(","):
        phase, marked, pool = part.partition("=")
        phase = phase.strip().lower()
        if phase in found:
            raise ValueError(f"{phase} is named twice; the form is {POOLS_FORM}")
        if not marked or phase not in PHASES:
            near = nearest(phase, PHASES)
            meant = f", did you mean {near}?" if near else ""
            raise ValueError(f"{part.strip()!r} names no pool{meant}; the form is {POOLS_FORM}")
        if not pool.strip():
            raise ValueError(f"{phase} has no pool; the form is {POOLS_FORM}")
        found[phase] = _pool(pool)
    return found


class PoolLayout(Spec):
    """One pool: GPU type, layout and number of its replicas, and settings of its engine.

    The search chooses what is absent. Absent settings are those of `serving`.
    """

    gpu: Text | None = None
    replicas: Annotated[int, above(0, MOST_REPLICAS)] | None = None
    tp: GroupSize | None = None
    pp: GroupSize | None = None
    ep: GroupSize | None = None
    dp: GroupSize | None = None
    cp: GroupSize | None = None
    dcp: GroupSize | None = None
    all2all_backend: Backend | None = None
    max_num_seqs: MostSequences | None = None
    max_num_batched_tokens: TokensOfStep | None = None


class Disaggregate(Spec):
    """Prefill and decode on separate GPUs. The search chooses a pool that is not described."""

    prefill: PoolLayout = PoolLayout()
    decode: PoolLayout = PoolLayout()


Pools = Annotated[Disaggregate, Before(read_pools)]


class HandOver(OneFile, Sourced):
    """The file hardware_profiles/_disaggregation.yaml: how a prompt's KV cache moves from one pool to the other.

    `by_layer`: the cache of a layer is sent while later layers are computed, so only the time that this does not hide delays the
    first token. Otherwise the whole cache is sent after prefill. `needs` says what engines must have.
    """

    FILE = "hardware_profiles/_disaggregation.yaml"

    by_layer: Flag
    needs: Text


MOST_DRAFTED = 64  # tokens a step: far beyond any published method
DRAFT_MODEL = "draft"  # the method with a separate draft model, whose name follows

OF_EXPERTS = "+experts"
LORA_FORM = f"SLOTSxRANK[{OF_EXPERTS}], as 16x64"
PREFIX_SIZES = {"shared_tokens", "distinct"}
MOST_TURNS = 1000  # of a conversation: far beyond what a context holds

Sparsity = Literal["2:4"]
PrefixRouting = Literal["affinity", "random"]


def _not_written_so(value: Any, form: str) -> Any:
    """Return a value that is not text. Raises ValueError for a number or a list: only a mapping or text is allowed."""
    if isinstance(value, (bool, int, float, list)):
        raise ValueError(f"{value!r} is not of the form {form}")
    return value


def _whole(text: str, form: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise ValueError(f"{text!r} is not a whole number; the form is {form}")
    return int(text)


SPECULATIVE_FORM = "METHOD[:TOKENS][@ACCEPTANCE[/...]], as eagle3:3@0.75, eagle:3@0.7/0.6/0.5 or draft:MODEL:4@0.7"


def _speculative(value: Any) -> Any:
    """Accept `eagle3`, `eagle3:3`, `eagle3:3@0.75`, `eagle:3@0.7/0.6/0.5` and `draft:llama-3.2-1b:4@0.7`."""
    if not isinstance(value, str):
        return _not_written_so(value, SPECULATIVE_FORM)
    named, marked, acceptance = value.strip().partition("@")
    method, *parts = named.split(":")
    found: dict[str, Any] = {"method": method.strip().lower()}
    if marked:
        shares = [parse_share(share) for share in acceptance.split("/")]
        found |= {"acceptance": shares[0]} if len(shares) == 1 else {"by_depth": shares}
    if found["method"] == DRAFT_MODEL:
        if not parts or not parts[0].strip():
            raise ValueError(f"a draft model needs its name; the form is {SPECULATIVE_FORM}")
        found["model"] = parts.pop(0).strip()
    if parts:
        found["tokens"] = _whole(parts.pop(0), SPECULATIVE_FORM)
    if parts:
        raise ValueError(f"{value!r} has too many parts; the form is {SPECULATIVE_FORM}")
    return found


def _sizes(*names: str, form: str) -> Callable[[Any], Any]:
    """A reader of texts such as `16x64`: one whole number for each name."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return _not_written_so(value, form)
        parts = re.split(r"[x\u00d7]", value.strip().lower())
        if len(parts) != len(names):
            raise ValueError(f"{value!r} is not of the form {form}")
        return {name: _whole(part, form) for name, part in zip(names, parts, strict=True)}

    return read


def _lora(value: Any) -> Any:
    """Accept `16x64` and `16x64+experts`."""
    read = _sizes("slots", "rank", form=LORA_FORM)
    text = value.strip().lower() if isinstance(value, str) else ""
    return {**read(text.removesuffix(OF_EXPERTS)), "experts": True} if text.endswith(OF_EXPERTS) else read(value)


def _prefix(value: Any) -> Any:
    """Accept a plain share as the hit rate. Raises ValueError for fields that contradict or give no hit rate."""
    if isinstance(value, dict):
        if "turns" in value and "hit" in value:
            raise ValueError("the hit rate (hit, --prefix-hit) follows from turns (--turns): state one of them")
        if not {"hit", "turns"} & value.keys() and PREFIX_SIZES & value.keys():
            why = "shared tokens are part of what is found in cache"
            raise ValueError(f"needs the hit rate too (hit, --prefix-hit), or turns: {why}")
        if "turns" not in value and "think_time_s" in value:
            what = "a think time (--think-time) acts on concurrent users (--users) and on turns (--turns)"
            raise ValueError(f"{what}; neither is stated: leave it out")
        if "routing" in value and not {"turns", "shared_tokens"} & value.keys():
            acts = "routing (--prefix-routing) acts on turns (--turns) and shared prefixes (--prefix-shared)"
            raise ValueError(f"{acts}; a plain hit rate is as measured behind your own router")
        if not {"hit", "turns"} & value.keys():
            other = "the turns that it follows from (turns, --turns)"
            raise ValueError(f"needs the hit rate (hit, --prefix-hit), or {other}")
    return _share_alone(value)


def _share_alone(value: Any) -> Any:
    return {"hit": value} if isinstance(value, (str, int, float)) and not isinstance(value, bool) else value


def _offload(value: Any) -> Any:
    """Accept `0.5` and `0.5@40`: share of the prompt, and GB/s from host memory."""
    if isinstance(value, str):
        share, marked, rate = value.strip().partition("@")
        found: dict[str, Any] = {"hit": share}
        if marked:
            try:
                found["gb_per_s"] = plain_float(rate)
            except ValueError:
                raise ValueError(f"{rate!r} is no number of GB/s; the form is SHARE[@GB_PER_S]") from None
        return found
    return _share_alone(value)


Rate = Annotated[float, above(0, 10_000)]


class Speculative(Spec):
    """Speculative decoding: a method, the tokens that it drafts per step, and the acceptance rate of a drafted token.

    Absent `tokens` and `acceptance` take the method's published defaults. `model` names the draft model of method `draft`.
    `by_depth` gives an acceptance rate for each drafted token: for the first, for the second if the first was accepted, and so
    on. Its last value holds for all further tokens.
    """

    method: Text
    tokens: Annotated[int, above(0, MOST_DRAFTED)] | None = None
    acceptance: ShareOfAll | None = None
    by_depth: Annotated[tuple[ShareOfAll, ...], Constraint(min_length=1, max_length=MOST_DRAFTED)] | None = None
    model: Text | None = None

    def validate(self) -> None:
        """Refuse two acceptances."""
        if self.acceptance is not None and self.by_depth is not None:
            raise ValueError("acceptance is for all drafted tokens, by_depth for each: state one of them")

    def drafts_as(self, other: Self) -> bool:
        """Whether the other one has the same method, and the same tokens where it states them."""
        return (self.method, self.tokens) == (other.method, other.tokens or self.tokens)

    @property
    def states_acceptance(self) -> bool:
        """Whether it states an acceptance, for all drafted tokens or for each."""
        return self.acceptance is not None or self.by_depth is not None

    def __str__(self) -> str:
        """Write it as a user does."""
        parts = [self.method, self.model, None if self.tokens is None else str(self.tokens)]
        text = ":".join(part for part in parts if part is not None)
        shares = self.by_depth or (() if self.acceptance is None else (self.acceptance,))
        return f"{text}@{'/'.join(f'{share:g}' for share in shares)}" if shares else text


class Prefix(Spec):
    """Prefix caching: `hit` is the share of a prompt's tokens that the cache already holds when the prompt arrives.

    `shared_tokens` tokens of each prompt are one of `distinct` prefixes (system prompts, documents). Live requests share them,
    and the cache holds each prefix once. Without `shared_tokens` each request holds its whole prompt.

    With `turns` the hit rate follows from conversations of that many turns. The workload's ISL is then the first prompt. Each
    later prompt repeats the conversation so far and adds as many user tokens as the first one. `think_time_s` passes between an
    answer and the next turn. `routing` says whether a router sends equal prefixes to the same replica (affinity) or to any
    replica (random).
    """

    hit: ShareOfAll | None = None
    shared_tokens: PositiveInt | None = None
    distinct: PositiveInt | None = None
    turns: Annotated[int, above(0, MOST_TURNS)] | None = None
    think_time_s: Annotated[float, above(0, MOST_DURATION_S), AsDuration] | None = None
    routing: Annotated[PrefixRouting, AnyCase] | None = None


class Lora(Spec):
    """LoRA adapters: how many are on the GPU at once, their rank, and whether routed experts have them too."""

    slots: Annotated[int, above(0, 100_000)]
    rank: Annotated[int, above(0, 8192)]
    experts: Flag | None = None

    def __str__(self) -> str:
        """Write it as a user does."""
        return f"{self.slots}x{self.rank}{OF_EXPERTS if self.experts else ''}"


MOST_PIXELS = 100_000  # of one side of an image


class Images(Spec):
    """Images of a request, all of one size in pixels."""

    count: Annotated[int, above(0, 10_000)]
    height: Annotated[int, above(0, MOST_PIXELS)]
    width: Annotated[int, above(0, MOST_PIXELS)]

    def __str__(self) -> str:
        """Write it as a user does."""
        return f"{self.count}x{self.height}x{self.width}"


class KvOffload(Spec):
    """KV cache in host memory: `hit` is the share restored from there, of the prompt tokens that the GPU's cache lacks.

    It is read at `gb_per_s`; if absent, at the speed of the GPU's PCIe link.
    """

    hit: ShareOfAll
    gb_per_s: Rate | None = None

    def __str__(self) -> str:
        """Write it as a user does."""
        return f"{self.hit:g}" + (f"@{self.gb_per_s:g}" if self.gb_per_s else "")


_images = _sizes("count", "height", "width", form="NxHxW, as 2x1024x768")


class Optimisations(Spec):
    """The optimisations that a workload asks for. An absent one is off."""

    speculative: Annotated[Speculative, Before(_speculative)] | None = None
    sparsity: Sparsity | None = None
    prefix: Annotated[Prefix, Before(_prefix)] | None = None
    lora: Annotated[Lora, Before(_lora)] | None = None
    images: Annotated[Images, Before(_images)] | None = None
    kv_offload: Annotated[KvOffload, Before(_offload)] | None = None
    disaggregate: Pools | None = None

    def asked(self) -> dict[str, Any]:
        """What is on, as plain data."""
        return {} if self == NOTHING_ASKED else self.model_dump(exclude_none=True)


NOTHING_ASKED = Optimisations()
