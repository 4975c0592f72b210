"""The terms of a deployment: the flags of an engine version that state them, as written and as read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import yaml

from sizing.catalog.profiles import launches
from sizing.catalog.shelf import load
from sizing.model.architecture import SIZES, Layout
from sizing.model.settings import is_within
from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.launch import SIZES as SIZE_TERMS
from sizing.specs.launch import EngineFlag, EngineFlags, Launched, Term
from sizing.specs.optimisations import DRAFT_MODEL, Optimisations, Speculative
from sizing.specs.workload import GENERATE, ImageLimit

Value = str | int | float | bool
Terms = dict[Term, Value]


class Word(NamedTuple):
    """A word of a command, its line, and whether quotes keep it one word."""

    text: str
    line: int | None = None
    whole: bool = False


class Dialect(NamedTuple):
    """One engine's flags in one version."""

    engine: EngineFlags
    title: str
    version: str

    @property
    def rows(self) -> tuple[EngineFlag, ...]:
        """The flags that this version has."""
        return tuple(row for row in self.engine.flags if self.has(row))

    def has(self, row: EngineFlag) -> bool:
        """Whether this version has a flag."""
        return is_within(self.version, row.since, row.until)

    def writes(self, term: Term) -> EngineFlag | None:
        """The flag of this version that states a term; None if there is none."""
        return next((row for row in self.rows if row.term == term and not row.read_only), None)

    @property
    def file_flag(self) -> str:
        """The flag of this version that names the settings file."""
        assert self.engine.file is not None
        file = self.engine.file
        old = [flag for flag, until in file.flag_until.items() if is_within(self.version, "0.1", until)]
        return old[0] if old else file.flags[0]


class Args(NamedTuple):
    """The arguments of an engine: words after its command, environment variables, and the text of its settings file."""

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    file: str | None = None


def dialect_of(name: str, title: str, version: str) -> Dialect:
    """The flags of an engine version. Raises InputError for an engine with unknown flags."""
    return Dialect(flags_of(name), title, version)


@cache
def flags_of(name: str) -> EngineFlags:
    """The flags of an engine, read once. Raises InputError for an engine with unknown flags."""
    return load(launches(), name).spec


@cache
def engine_names() -> tuple[str, ...]:
    """The engines with known flags."""
    return launches().ids


class StatedTerm(NamedTuple):
    """A term that was read: its value, and the line and flag that state it."""

    value: Value
    line: int | None
    flag: str


@dataclass(slots=True)
class ReadArgs:
    """The terms that an engine's arguments state, and the faults of unknown arguments.

    `open` are terms that the arguments leave to the engine, such as a length of `auto`. `again` are terms stated again with
    another value; the last value counts, as in the engines. `passed` are flags that were skipped, as the user says that they
    change nothing. `words` are the engine's own words for terms that have a list of them. `unmodelled` are flags and keys whose
    effect is not predicted, `recalled` those whose effect is known from memory alone.
    """

    model: StatedTerm | None = None
    terms: dict[Term, StatedTerm] = field(default_factory=dict)
    open: set[Term] = field(default_factory=set)
    again: list[StatedTerm] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    passed: set[str] = field(default_factory=set)
    words: dict[Term, StatedTerm] = field(default_factory=dict)
    unmodelled: list[StatedTerm] = field(default_factory=list)
    recalled: list[StatedTerm] = field(default_factory=list)

    def under(self, file: ReadArgs) -> None:
        """Add the terms of a settings file; the command's own flags take precedence."""
        self.model = self.model or file.model
        self.open |= file.open - self.terms.keys()
        self.terms = {**{term: each for term, each in file.terms.items() if term not in self.open}, **self.terms}
        self.again += file.again
        self.faults += file.faults
        self.passed |= file.passed
        self.words = {**file.words, **self.words}
        self.unmodelled += file.unmodelled
        self.recalled += file.recalled


def write(dialect: Dialect, terms: Mapping[Term, Value]) -> Args:
    """The arguments that state `terms`. Raises InputError for each term without a flag, or a word, in this version."""
    words: list[str] = []
    env: list[tuple[str, str]] = []
    objects: dict[str, dict[str, Value]] = {}
    settings: dict[str, object] = {}
    faults = []
    for term, value in terms.items():
        row = dialect.writes(term)
        said = None if row is None else _said(row, value)
        if row is None or said is None:
            faults.append(_unwritten(dialect, term, value))
        elif row.env is not None:
            env.append((row.env, str(said)))
        elif row.file:
            _put(settings, str(row.key), None if row.absent else said)
        elif row.key is not None:
            if row.flags[0] not in objects:
                words += (row.flags[0], "")
            objects.setdefault(row.flags[0], {})[row.key] = said
        elif row.takes_value:
            words += (row.flags[0], str(said))
        elif value or row.off:
            words.append(row.flags[0] if value else row.off[0])
    raise_any(faults)
    for flag, content in objects.items():
        words[words.index(flag) + 1] = json.dumps(content)
    if not settings:
        return Args(tuple(words), tuple(env))
    assert dialect.engine.file is not None
    named = (dialect.file_flag, dialect.engine.file.name)
    return Args((*words, *named), tuple(env), yaml.safe_dump(settings, sort_keys=False, default_flow_style=False))


def _said(row: EngineFlag, value: Value) -> Value | None:
    """A value in the engine's words; None if the engine has no word for it."""
    if row.choices and value not in row.choices:
        return None
    return row.values.get(str(value)) if row.values else value


def _put(settings: dict[str, object], path: str, value: object) -> None:
    *holders, last = path.split(".")
    for step in holders:
        inner = settings.setdefault(step, {})
        assert isinstance(inner, dict)
        settings = inner
    settings[last] = value


def _unwritten(dialect: Dialect, term: Term, value: Value) -> Fault:
    what, row = f"{dialect.title} {dialect.version}", dialect.writes(term)
    if row is not None:
        allowed = ", ".join(row.values or map(str, row.choices))
        return Fault(f"{what} has no word for {value}", field=row.name, allowed=allowed)
    others = [row for row in dialect.engine.flags if row.term == term and not row.read_only]
    since = f"; {others[0].name} is there since {others[0].since}" if others else ""
    return Fault(f"{what} has no flag for it{since}", field=term)


# Terms that are the same as serving fields of a workload.
SERVED: tuple[Term, ...] = (
    "memory_fraction", "max_model_len", "max_num_batched_tokens", "kv_cache_bytes", "max_total_tokens", "enforce_eager",
    "cpu_offload_gb", "language_model_only", "mamba_full_memory_ratio", "max_mamba_cache_size", "redundant_experts",
)  # fmt: skip
LOW_LATENCY = "low_latency"  # of the ways to experts
SWITCHED = ("enforce_eager", "language_model_only")  # written only if they are on


def layout_of(launched: Launched) -> Layout:
    """The layout of a replica; unstated sizes are 1."""
    return Layout(**{name: getattr(launched.serving, name) or 1 for name in SIZES})


# --- to terms ---------------------------------------------------------------------------------------------------------


def terms_of(launched: Launched, dialect: Dialect) -> Terms:
    """The terms of a deployment on an engine version. Raises InputError for a layout that the engine can't express."""
    terms: Terms = dict(_layout(layout_of(launched), dialect))
    serving = launched.serving
    terms |= _ways(launched, dialect)
    for term in SERVED:
        value = getattr(serving, term)
        if value is not None and (term not in SWITCHED or value):
            terms[term] = value
    if serving.redundant_experts is not None and dialect.writes("eplb"):
        terms["eplb"] = True
    if serving.max_num_seqs is not None:
        ranks = layout_of(launched).dp if dialect.engine.sequences_of == "replica" else 1
        terms["max_num_seqs"] = serving.max_num_seqs * ranks
    if serving.prefix_caching is not None:
        if dialect.writes("prefix_caching"):
            terms["prefix_caching"] = serving.prefix_caching
        elif not serving.prefix_caching:
            terms["no_prefix_caching"] = True
    if serving.pp_layers is not None:
        terms["pp_layers"] = ",".join(map(str, serving.pp_layers))
    if serving.limit_mm_per_prompt is not None:
        terms["limit_mm_per_prompt"] = _images(serving.limit_mm_per_prompt)
    if dialect.writes("kv_precision"):
        terms["kv_precision"] = launched.kv_precision
    if launched.precision is not None:
        terms["precision"] = launched.precision
    if launched.lora is not None:
        terms |= {"lora": True} if dialect.writes("lora") else {}
        terms |= {"lora_slots": launched.lora.slots, "lora_rank": launched.lora.rank}
    return {**terms, **_drafts(launched, dialect), **_roles(launched, dialect)}


def _layout(layout: Layout, dialect: Dialect) -> Iterator[tuple[Term, Value]]:
    """Yield the sizes of a layout in the way the engine counts them."""
    title = f"{dialect.title} {dialect.version}"
    if dialect.engine.tp_counts == "attention":
        yield "tp", layout.tp
        yield from ((name, getattr(layout, name)) for name in ("pp", "dp", "cp", "dcp") if getattr(layout, name) > 1)
        if layout.ep > 1:
            if layout.ep != layout.stage_gpus:
                what = f"{title} spreads experts over all {layout.stage_gpus} GPUs of a stage, not over {layout.ep}"
                raise InputError(what, field="--ep", allowed=f"{layout.stage_gpus}, or 1")
            yield "expert_parallel", True
        return
    whole = layout.stage_gpus if dialect.writes("dp") else layout.tp * layout.dp
    yield "tp", whole
    yield from ((name, getattr(layout, name)) for name in ("pp", "ep", "cp", "dcp") if getattr(layout, name) > 1)
    if layout.dp == 1:
        return
    if dialect.writes("attention_dp_size"):
        yield "attention_dp_size", layout.dp
    elif dialect.writes("dp"):
        yield "attention_dp", True
        yield "dp", layout.dp
    elif layout.tp > 1:
        what = f"{title} splits attention over all GPUs of a stage or over none"
        raise InputError(what, field="--dp", allowed=f"{whole} with --tp 1, or 1")
    else:
        yield "attention_dp", True


HEAD, RANK = "{head}", "{rank}"  # placeholders: the first node, and a further node's rank
PLACES = re.compile(r"\{(head|rank)(?:\*(\d+))?\}")  # a placeholder in a word; {rank*8} is eight times the rank


class OfNodes(NamedTuple):
    """The terms that the commands of several nodes state besides the layout: `first` for the first node, `further` for others.

    `further` is None if the other nodes need no terms.
    """

    first: Terms
    further: Terms | None = None


def of_nodes(layout: Layout, nodes: int, dialect: Dialect) -> OfNodes:
    """The terms for the nodes of a replica. Raises InputError for a layout that the engine version starts on one node only."""
    engine, ranks = dialect.engine, nodes * layout.dp // math.gcd(nodes, layout.dp)
    if nodes == 1 or engine.launcher:
        return OfNodes({})
    if layout.dp > 1 and dialect.writes("dp_local") and ranks == layout.dp:  # whole ranks on each node
        local = layout.dp // nodes
        shared: Terms = {"dp_local": local, "dp_head": HEAD}
        return OfNodes(shared, {**shared, "dp_start": f"{{rank*{local}}}", "headless": True})
    if dialect.writes("nodes") and (layout.dp == 1 or not dialect.writes("dp_local")):
        shared = {"nodes": nodes, "head": HEAD if engine.head_port is None else f"{HEAD}:{engine.head_port}"}
        headless: Terms = {"headless": True} if dialect.writes("headless") else {}
        return OfNodes({**shared, "node_rank": "0"}, {**shared, "node_rank": RANK, **headless})
    if engine.cluster is not None and layout.dp == 1:
        return OfNodes({"executor": "ray"})
    what = f"{dialect.title} {dialect.version} has no flags to start a replica of {layout} on {nodes} nodes"
    raise InputError(what, field="deploy", allowed="a layout within a node, or another version")


def _ways(launched: Launched, dialect: Dialect) -> Terms:
    """The terms of the way that tokens take to experts, and of the most that a rank sends in a step of decode."""
    way, most = launched.serving.all2all_backend, launched.serving.max_num_seqs
    if way is None or (way == "allgather" and not dialect.writes("all2all_backend")):
        return {}
    found: Terms = {"all2all_backend": way}
    if way != "allgather" and dialect.writes("deepep_mode"):
        found["deepep_mode"] = way
    if way == LOW_LATENCY and most is not None and dialect.writes("dispatch_tokens"):
        drafts = 0 if launched.speculative is None else launched.speculative.tokens or 0
        found["dispatch_tokens"] = most * (1 + drafts)
    return found


def _images(limit: ImageLimit) -> str:
    size = {name: getattr(limit, name) for name in ("height", "width") if getattr(limit, name) is not None}
    stated: dict[str, object] = {"image": {"count": limit.count, **size} if size else limit.count}
    return json.dumps(stated if limit.videos else {**stated, "video": 0})


def _drafts(launched: Launched, dialect: Dialect) -> Terms:
    spoken = launched.speculative
    if spoken is None:
        return {}
    terms: Terms = {"spec_method": spoken.method}
    checkpoint = launched.draft_checkpoint or spoken.model
    if checkpoint is not None:
        terms["spec_model"] = checkpoint
    elif spoken.method not in ("mtp", "ngram"):
        what = f"{spoken.method} drafts with a checkpoint of its own"
        raise InputError(what, field="--draft-model", allowed="its name or folder")
    tokens = spoken.tokens
    if tokens is None:
        return terms
    if dialect.writes("spec_modules") and spoken.method == "mtp":
        return {**terms, "spec_modules": tokens}
    if not dialect.writes("spec_verified"):
        return {**terms, "spec_tokens": tokens}
    if spoken.method == "ngram":
        return {**terms, "spec_verified": tokens + 1}
    return {**terms, "spec_tokens": tokens, "spec_width": 1, "spec_verified": tokens + 1}


def _roles(launched: Launched, dialect: Dialect) -> Terms:
    if launched.role == "whole":
        return {}
    found: Terms = {"role": launched.role}
    if launched.role == "prefill" and dialect.writes("no_overlap"):
        found["no_overlap"] = True
    return found if launched.connector is None else {"connector": launched.connector, **found}


# --- from terms -------------------------------------------------------------------------------------------------------


def data_of(read: ReadArgs, dialect: Dialect, *, experts: bool, file: str) -> dict[str, Any]:
    """The arguments as plain data of a deployment; `experts` says whether the model has experts.

    Ranks that share nothing count as replicas. Raises InputError for sizes that do not divide.
    """
    given = {term: stated.value for term, stated in read.terms.items()}
    sizes, replicas = _sizes(read.terms, dialect, experts=experts, file=file)
    served = (*SERVED, "limit_mm_per_prompt")
    serving: dict[str, Any] = {**sizes, **{name: given[name] for name in served if given.get(name)}}
    if "max_num_seqs" in given:
        ranks = sizes["dp"] * replicas if dialect.engine.sequences_of == "replica" else 1
        serving["max_num_seqs"] = max(1, int(given["max_num_seqs"]) // ranks)
    if "prefix_caching" in given or "no_prefix_caching" in given:
        serving["prefix_caching"] = given.get("prefix_caching", not given.get("no_prefix_caching", False))
    if "pp_layers" in given:
        serving["pp_layers"] = str(given["pp_layers"])
    way = given.get("all2all_backend")
    if way is not None and experts:
        normal = way != "allgather" and given.get("deepep_mode") == "high_throughput"
        serving["all2all_backend"] = "high_throughput" if normal else way
    named = ("kv_precision", "precision", "role", *(() if given.get("role") == "whole" else ("connector",)))
    data = {"serving": serving, "replicas": replicas, **{name: given[name] for name in named if name in given}}
    return {**data, **_speculation(given), **_adapters(given, dialect), **_task(given)}


def _task(given: Mapping[Term, Value]) -> dict[str, Any]:
    """What the flags say that the engine does; empty where they leave it to the checkpoint."""
    if given.get("pooling") == GENERATE:
        return {"task": GENERATE}
    said = given.get("convert") or given.get("task") or ("pooling" if given.get("pooling") else None)
    return {} if said is None else {"task": said}


def _sizes(
    terms: Mapping[Term, StatedTerm], dialect: Dialect, *, experts: bool, file: str
) -> tuple[dict[str, int], int]:
    """The sizes of a replica's layout, and the number of replicas that one command starts."""
    stated = {str(name): int(terms[name].value) for name in SIZE_TERMS if name in terms}
    sizes = {name: stated.get(name, 1) for name in SIZES}
    if dialect.engine.tp_counts == "attention":
        replicas = 1
        if not experts:
            replicas, sizes["dp"], sizes["ep"] = sizes["dp"], 1, 1
        elif "expert_parallel" in terms and terms["expert_parallel"].value:
            sizes["ep"] = sizes["tp"] * sizes["dp"] * sizes["cp"]
        return sizes, replicas
    attention = "attention_dp" in terms and bool(terms["attention_dp"].value)
    ranks, replicas = 1, 1
    if "attention_dp_size" in stated:
        ranks, replicas = stated["attention_dp_size"], stated.get("dp", 1)
    elif attention:
        ranks = stated["dp"] if "dp" in stated else sizes["tp"] if not dialect.writes("dp") else 1
    else:
        replicas = stated.get("dp", 1)
    shared = ranks * (sizes["cp"] if dialect.writes("dp") else 1)
    if sizes["tp"] % shared:
        _, line, flag = terms.get("tp", StatedTerm(1, None, "--tp"))
        what = f"{sizes['tp']} GPUs of a stage are not divided by {shared} attention ranks"
        raise InputError(what, file=file, line=line, field=flag)
    ranks, replicas = (ranks, replicas) if experts else (1, ranks * replicas)
    return {**sizes, "tp": sizes["tp"] // shared, "dp": ranks}, replicas


def nodes_of(read: ReadArgs, dialect: Dialect) -> int | None:
    """The number of nodes of a replica; None if the engine or its launcher distributes the replica."""
    given = {term: stated.value for term, stated in read.terms.items()}
    if {"executor", "dp_backend"} & given.keys() or not any(row.term in ("nodes", "dp_local") for row in dialect.rows):
        return None
    ranks = int(given.get("dp", 1)) // int(given.get("dp_local", given.get("dp", 1)))
    return max(int(given.get("nodes", 1)), ranks)


def _speculation(given: Mapping[Term, Value]) -> dict[str, Any]:
    method = given.get("spec_method")
    if method is None:
        return {}
    found: dict[str, Any] = {"method": method}
    if "spec_verified" in given:
        found["tokens"] = int(given["spec_verified"]) - 1
    for name in ("spec_modules", "spec_tokens"):  # the last one counts
        found |= {"tokens": given[name]} if name in given else {}
    if "spec_model" not in given:
        return {"speculative": found}
    if method == DRAFT_MODEL:
        return {"speculative": {**found, "model": given["spec_model"]}}
    return {"speculative": found, "draft_checkpoint": given["spec_model"]}


def with_acceptance(flags: Speculative | None, said: str | None, place: tuple[str, int | None]) -> Speculative | None:
    """Speculative decoding as flags start it, with the acceptance that `said` (`ngram:4@0.5`) states for it.

    Raises InputError where `said` names other drafts than the flags.
    """
    if said is None:
        return flags
    stated = Optimisations.model_validate({"speculative": said}).speculative
    assert stated is not None
    if flags is None or not flags.drafts_as(stated):
        what = f"says {stated}, and the flags start {flags or 'no drafts'}"
        raise InputError(what, file=place[0], line=place[1], field="speculative", remedy="state one of them")
    return flags.model_copy(update={"acceptance": stated.acceptance, "by_depth": stated.by_depth})


def _adapters(given: Mapping[Term, Value], dialect: Dialect) -> dict[str, Any]:
    """The stated adapters; with the engine's default slots and rank if only their presence is stated."""
    if not given.get("lora") and not {"lora_slots", "lora_rank"} <= given.keys():
        return {}
    own = dialect.engine.adapters
    return {"lora": {"slots": given.get("lora_slots", own.slots), "rank": given.get("lora_rank", own.rank)}}
