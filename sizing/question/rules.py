"""A table of options that have no effect or contradict another, by situation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.question.fields import CONFIGURED, WORKLOAD_OPTIONS, Field, is_stated
from sizing.specs.errors import Fault, raise_any

if TYPE_CHECKING:  # not needed for help and option faults
    from sizing.model.architecture import Layout
    from sizing.model.settings import Service
    from sizing.question.question import Question
    from sizing.specs.workload import Target, Workload

OF_CONVERSATIONS = ("turns", "think_time", "prefix_routing")
SPARING = ("prefix_hit", "prefix_shared", "prefix_distinct", *OF_CONVERSATIONS, "kv_offload")
OF_LENGTHS = ("isl", "osl", "isl_max", "osl_max", "isl_std", "osl_std", "length_shape", "length_ratio")
OF_RATES = ("rps", "users", "requests_per_session", "session_length", "concurrency")
OF_DEMAND = (*OF_RATES, "closed_loop", "dau", "documents", "within", "mean_rps", "profile", "percentile")
OF_LOADS = (*OF_RATES, "dau", "arrivals")
# Options of `curve` that filter or judge measured rows; options of `plan` that a fleet takes too.
OF_ROWS = ("model", "gpu", "precision", "isl", "osl", "mode", "ttft", "itl", "e2e")
OF_FLEETS = ("headroom", "max_utilisation", "percentile", "price_uncertainty")
OF_PREDICTIONS = ("concurrency", "closed_loop", "seed", "jobs", "no_verify")


class Rule(NamedTuple):
    """Options that are excluded in the situation `when`, why, and the alternative; `together` makes one fault of all."""

    when: str
    options: tuple[str, ...]
    why: str
    instead: str | None = None
    together: bool = False


def _but(names: tuple[str, ...]) -> tuple[str, ...]:
    """The options of a workload except `names`."""
    return tuple(field.name for field in WORKLOAD_OPTIONS if field.name not in names)


ONE_CACHE = "has nothing to act on: here is one replica, which holds all prefixes, and no ISL that grows"
ALL_NEW = "changes which tokens a step gets, not the step"
OF_CACHES = ("kv_precision", "kv_cache_bytes", "max_total_tokens", "prefix_caching", "sequences", *SPARING)
NO_USERS = "has no meaning where no daily active users bring the load"
NO_DRAWS = "has no meaning without draws"
NO_HOURS = "has no meaning at the same load all day"
NO_HOURS_HERE = "has no meaning for a load that is stated at its peak, whose hours change no size"
NO_DEMAND = "has no meaning without a demand"
UNPREDICTED = "has no meaning where nothing is predicted"
PREDICTED = "with a workload or --model, without --measured-only"
LONGER = "has no meaning where no {} is longer than the mean", "with --{}-std; --max-model-len holds longer sequences"

RULES = (
    # one layout
    Rule("one cache", OF_CONVERSATIONS, ONE_CACHE, "--max-model-len with the length of the last turn, --prefix-distinct with the prefixes of one replica", together=True),
    Rule("a step", SPARING, ALL_NEW, "--prefill N --prior M: N tokens to compute of a prompt with M in cache", together=True),
    Rule("a roofline", SPARING, ALL_NEW, "--prefill N: the tokens of a prompt that are computed", together=True),
    Rule("a roofline", ("enforce_eager",), "changes launches by the host, and a roof has none", "llmsize step or estimate"),
    Rule("a step", ("max_model_len",), "bounds sequences, and a step is timed at the context that is given", "--context, --prior"),
    Rule("a roofline", ("max_model_len",), "bounds sequences, and a roofline is drawn at the context that is given", "--context, --prefill"),
    Rule("no ranks of experts", ("expert_imbalance",), "has no meaning where every GPU holds a part of each expert", "with --ep"),
    Rule("no ranks of attention", ("all2all_backend",), "has no meaning where no tokens are sent to the ranks of their experts", "with --dp N --ep N"),
    Rule("a memory", ("expert_imbalance", "kv_offload", "offload_backend"), "changes times, not what a GPU's memory holds", "llmsize step or estimate"),
    Rule("buffers of no engine", ("all2all_backend",), "changes no memory here: this engine's profile counts no buffers for it", "llmsize step or estimate"),
    Rule("buffers of no layout", ("all2all_backend",), "changes no memory here: tokens go to the ranks of their experts only where --dp is above 1 and --ep counts all GPUs of a stage", "with --dp N --ep N"),
    Rule("a layout", ("layouts",), "has nothing to choose from where TP is given, which gives the layout", "without --tp"),
    Rule("prefixes found", ("prefix_caching",), "is on where prefixes are found in cache", "without it, or without --prefix-hit and --turns"),
    Rule("no states", ("prefix_caching",), "changes nothing here: only a model with recurrent states keeps more with it", "such a model; llmsize deploy writes it"),
    Rule("no KV cache", OF_CACHES, "has nothing to act on: the model keeps no KV cache"),
    Rule("nothing is shared", ("prefix_hit",), "changes memory only where live requests share what is found", "with --prefix-shared"),
    # options without effect for a demand
    Rule("offline work", ("ttft", "itl", "e2e"), "has no meaning for offline work, which has no limits on latency", "another --mode"),
    Rule("one token out", ("itl",), "has no meaning where an answer is one token", "with --osl above 1"),
    Rule("one token out", ("speculative",), "has nothing to act on where an answer is one token: no step decodes", "with --osl above 1"),
    Rule("offline work", ("max_utilisation",), "has no meaning for offline work, which keeps every slot full", "another --mode"),
    Rule("a closed demand", ("max_utilisation",), "has no meaning in a closed loop, whose clients wait for each other", "without --closed-loop"),
    Rule("money of no users", ("requests_per_user",), NO_USERS, "with --dau"),
    Rule("no peak", ("profile", "percentile"), NO_DEMAND, "with --rps or --dau"),
    Rule("rows at a rate", ("profile",), NO_HOURS_HERE, "with --dau, or --mean-rps"),
    Rule("rows of no users", ("requests_per_user", "active_hours", "peak_to_mean"), NO_USERS, "with --dau, or --mean-rps"),
    # contradictory options of a simulation
    Rule("real time", ("prefill", "prefill_chunks", "rate", "osl_mean"), "counts ticks", "with --ticks"),
    Rule("a trace", (*OF_LOADS, *OF_LENGTHS), "contradicts --trace, which has its own"),
    Rule("a minute of a trace", (*OF_DEMAND, *OF_LENGTHS, "requests_per_user", "active_hours", "peak_to_mean", "mode", "turns", "disaggregate"), "contradicts --trace, which has its own"),
    Rule("lengths are spread", ("length_ratio",), "contradicts --isl-std, --osl-std and --length-shape"),
    Rule("all at once", ("rps", "dau"), "contradicts --arrivals at-once, which has no rate"),
    Rule("requests in flight", ("arrivals",), "contradicts --concurrency, where an end brings the next"),
    Rule("replicas of pools", ("replicas",), "contradicts --disaggregate, where each pool has its count"),
    Rule("policies of pools", ("policy",), "contradicts --disaggregate, whose pools are scheduled as the engine does"),
    Rule("slots of pools", ("slots",), "contradicts --disaggregate", "--max-num-seqs, of both pools"),
    # options without effect under the load of a simulation
    Rule("no dynamic batches", ("batch_size", "batch_window"), "has no meaning without --policy dynamic"),
    Rule("a mean rate", ("requests_per_user",), NO_USERS, "with --dau"),
    Rule("no users", ("requests_per_user", "active_hours", "peak_to_mean"), NO_USERS, "with --dau"),
    Rule("no rate", ("arrivals",), "has no meaning without a rate", "with --rps or --dau; at-once"),
    Rule("a closed loop", ("routing",), "has no meaning in a closed loop, whose clients stay with their replica"),
    Rule("one replica", ("routing",), "has no meaning with one replica", "with --replicas"),
    Rule("equal lengths", ("length_shape",), "has no meaning where all lengths are equal", "with --isl-std or --osl-std"),
    Rule("equal isl", ("isl_max",), LONGER[0].format("prompt"), LONGER[1].format("isl")),
    Rule("equal osl", ("osl_max",), LONGER[0].format("output"), LONGER[1].format("osl")),
    Rule("a mean output", ("osl",), "contradicts --osl-mean"),
    # what deploy writes
    Rule("nothing is drafted", ("draft_model",), "has no meaning where nothing is drafted", "with --speculative"),
    Rule("a benchmark of any target", ("target",), "changes nothing of a benchmark's command", "without it, or --json, which has both"),
    # curves
    Rule("no predictions", (*_but((*OF_ROWS, "tp", "pp", "concurrency")), "disaggregate"), UNPREDICTED, PREDICTED),
    Rule("no predictions", OF_PREDICTIONS, UNPREDICTED, PREDICTED),
    Rule("no chance", ("seed",), "has no meaning where nothing is drawn", "with lengths that spread, or arrivals at random times"),
    Rule("no simulation", ("seed",), "has no meaning without simulation", "without --no-verify"),
    Rule("one replica of a curve", ("prefix_routing",), "has nothing to act on: a curve is of one replica", "llmsize estimate or simulate"),
    Rule("no measurements", ("measured_only",), "has no meaning without measurements", "with --measured FILE.csv"),
    # options that a command lacks on purpose
    Rule("whatif", ("confidence", "conservative"), "has no meaning in whatif: no published runs have optimisations, so it compares sizes as predicted", "llmsize estimate --confidence"),
    Rule("curve", ("confidence", "conservative", "headroom"), "has no meaning for a curve, which sizes nothing", "llmsize estimate or compare"),
    Rule("curve", ("gpus",), "has no meaning for a curve, whose layouts say how many GPUs each has; its first line is of 8 GPUs where replicas fill them", "without it"),
    Rule("memory", ("isl", "osl", "isl_max", "osl_max", "context"), "has no meaning for memory, which holds whole sequences", "--max-model-len: tokens of prompt and output together"),
    # plans and comparisons
    Rule("GPUs to replace", OF_DEMAND, "has no meaning with --replace, whose GPUs say what the demand is"),
    Rule("no draws", ("seed", "price_uncertainty"), NO_DRAWS, "with --uncertain"),
    Rule("a fleet", _but(OF_FLEETS), "is of one workload; a fleet's file says it for each"),
    Rule("no hours", ("min_replicas", "spot"), NO_HOURS, "with --profile, or --cloud"),
    Rule("no demand", ("growth", "availability", "maintenance", "uncertain"), NO_DEMAND, "with --rps, --dau or a workload's own demand"),
)  # fmt: skip


def is_given(value: Any) -> bool:
    """Whether an option was given; zero counts as given."""
    return value is not None and value is not False


def broken(situations: Iterable[str], fields: Iterable[Field], values: Mapping[str, Any]) -> list[Fault]:
    """The faults of options without effect in the situations, in the order of the table.

    A setting without effect is no fault, because it may have an effect in other questions.
    """
    holding, settings, faults = set(situations), values.get(CONFIGURED, ()), list[Fault]()
    rules = [rule for rule in RULES if rule.when in holding]
    known = {field.name: field for field in fields} if rules else {}
    for rule in rules:
        given = []
        for name in rule.options:
            field, value = known.get(name), values.get(name)
            if name not in settings and (is_given(value) if field is None else is_stated(field, value)):
                given.append(f"--{name.replace('_', '-')}" if field is None else field.spelt(value))
        if rule.together and given:
            given = [", ".join(given)]
        faults += [Fault(rule.why, field=flag, allowed=rule.instead) for flag in given]
    return faults


def of_question(question: Question) -> Iterator[str]:
    """Yield the situations of a question in which options have no effect, whatever the command."""
    yield from of_workload(question.origin.workload, question.target)
    yield from of_service(question.service)
    if question.service.serving.tp is not None:
        yield "a layout"


def of_service(service: Service) -> Iterator[str]:
    """Yield the situations of a model and its optimisations in which options have no effect, with a load or without."""
    from sizing.model.architecture import has_states

    if service.model.encoder:
        yield "no KV cache"
    elif service.optimisations.prefix is not None:
        yield "prefixes found"
    elif not has_states(service.model):
        yield "no states"


def of_workload(workload: Workload, target: Target) -> Iterator[str]:
    """Yield the situations of a workload and its target in which options have no effect, predicted or measured."""
    demand = workload.demand
    if workload.tokens.osl == 1 and not workload.tokens.osl_std:
        yield "one token out"
    if target.offline:
        yield "offline work"
    elif target.concurrency is not None and demand is not None and demand.closed_loop:
        yield "a closed demand"


def of_kind(question: Question, *, rows: bool) -> Iterator[str]:
    """Yield the situations of costs, or of measured `rows`, in which options about daily active users have no effect."""
    from sizing.question.demand import AT_ONCE, OF_PEAK

    demand = question.origin.workload.demand
    kind = None if demand is None else demand.kind
    if not rows and kind not in (None, "daily_active_users"):
        yield "money of no users"
    if kind is None:
        yield "no peak"
    if rows and kind in (*OF_PEAK, *AT_ONCE):
        yield "rows at a rate"
    if kind is None or (rows and kind in (*OF_PEAK, *AT_ONCE)):
        yield "rows of no users"


def of_layout(layout: Layout) -> Iterator[str]:
    """Yield the situations of a given layout of experts in which options have no effect on times."""
    if layout.ep == 1:
        yield "no ranks of experts"
    if layout.token_ranks == 1 or layout.ep != layout.stage_gpus:
        yield "no ranks of attention"


def check_rules(situations: Iterable[str], fields: Iterable[Field], values: Mapping[str, Any]) -> None:
    """Raise InputError with the faults of all options that break a rule."""
    faults = broken(situations, fields, values)
    raise_any(faults)
