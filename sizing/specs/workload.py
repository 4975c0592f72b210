"""A workload as a user states it: model, precision, tokens, demand, latency limits and serving options. Also its target."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, get_args

from sizing.specs import values
from sizing.specs.demand import Demand, RequestsEach, StatedProfile
from sizing.specs.engine import Backend, Imbalance, MostSequences, TokensOfStep
from sizing.specs.frozen import Frozen
from sizing.specs.optimisations import NOTHING_ASKED, Optimisations
from sizing.specs.spec import Before, Constraint, Schema, Spec
from sizing.specs.units import lognormal_mean_below, parse_bytes, parse_duration_s, parse_limit, parse_share
from sizing.specs.values import (
    NO_ENTRIES,
    AnyCase,
    AsNumber,
    AsShare,
    Flag,
    Fraction,
    GroupSize,
    Growth,
    NonNegative,
    NonNegativeInt,
    OneFile,
    Positive,
    PositiveInt,
    Range,
    Sourced,
    Text,
    above,
    within,
    written,
)

Precision = Literal["fp32", "fp16", "bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4"]
KvPrecision = Literal["auto", "fp32", "fp16", "bf16", "fp8", "int8", "nvfp4"]
Metric = Literal["ttft", "itl", "e2e"]
LATENCIES: tuple[Metric, ...] = get_args(Metric)
ONE_LATENCY = "latency"  # of a request with a single result: there is no first token before it
Statistic = Literal["mean", "p50", "p90", "p95", "p99"]
Objective = Literal["gpus", "cost", "energy"]
Aim = Literal[Objective, "request-cost"]  # the last where slower GPUs serve fewer requests of the same people in flight
# How far the search for layouts goes: group sizes within a node; also pipelines; every size that divides the model.
Reach = Literal["usual", "pipelines", "all"]
# The task of a request, in vLLM's words. All tasks except `generate` pool the states of a prompt and return no tokens.
Task = Literal["generate", "embed", "classify", "score"]
GENERATE: Task = "generate"


def _limit(value: Any) -> Any:
    """Accept `500ms`, `p95:500ms` and `{p95: 500ms}` alike."""
    if isinstance(value, str):
        statistic, seconds = parse_limit(value)
        return {"statistic": statistic, "seconds": seconds}
    if isinstance(value, dict) and set(value) != {"statistic", "seconds"}:
        if len(value) != 1:
            raise ValueError("a limit is one duration, as 500ms or {p95: 500ms}")
        ((statistic, duration),) = value.items()
        if not isinstance(duration, str):
            raise ValueError("a duration needs its unit, as 500ms or 1.5s")
        return {"statistic": statistic, "seconds": parse_duration_s(duration)}
    if isinstance(value, (int, float)):
        raise ValueError("a duration needs its unit, as 500ms or 1.5s")
    return value


def _percentile(text: str) -> float:
    """Read `p95`, `95%` and `0.95` alike."""
    stripped = text.strip()
    return parse_share(f"{stripped[1:]}%" if stripped[:1].lower() == "p" else text)


MOST_GPU_TYPES = 256  # far more than are on sale


def _one_or_several(value: Any) -> Any:
    """Accept one name or several. Duplicates count once."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        value = tuple(dict.fromkeys(value))
        if len(value) > MOST_GPU_TYPES:
            raise ValueError(f"holds {len(value):,} names, at most {MOST_GPU_TYPES} are compared")
    return value


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Read `20,22`. Raises ValueError for other text."""
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise ValueError(f"{text!r} is no list of whole numbers, as 20,22")
    return tuple(map(int, text.split(",")))


class Limit(Spec):
    """An upper bound on one statistic of a latency, in seconds."""

    statistic: Statistic
    seconds: Positive

    def at(self, seconds: float) -> "Limit":
        """The limit on the same statistic at another latency."""
        return self.model_copy(update={"seconds": seconds})


_LIMITS = "duration with its unit (500ms), or a statistic and one (p95:500ms)"
_BY_STATISTIC = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "propertyNames": {"enum": list(get_args(Statistic))},
}
_LIMIT_FORMS = [{"type": "string"}, {**_BY_STATISTIC, "additionalProperties": {"type": "string"}}]
LatencyLimit = Annotated[
    Limit,
    Before(_limit),
    Constraint(words=f"a {_LIMITS}"),
    Schema({"description": f"A {_LIMITS}.", "anyOf": _LIMIT_FORMS}),
]


def latency_name(latency: str, *, single: bool) -> str:
    """The name of a latency for people: `TTFT`; of a request with a `single` result, which has one latency, `latency`."""
    return ONE_LATENCY if single else latency.upper()


def limit_name(latency: str, statistic: str, *, single: bool) -> str:
    """The name of a limit for people: `ITL limit` of a mean, `TTFT limit (p95)` of a percentile."""
    of_what = "" if statistic == "mean" else f" ({statistic})"
    return f"{latency_name(latency, single=single)} limit{of_what}"


class Limits(Spec):
    """Latency limits. An absent limit does not apply."""

    ttft: LatencyLimit | None = None
    itl: LatencyLimit | None = None
    e2e: LatencyLimit | None = None

    @property
    def stated(self) -> dict[Metric, Limit]:
        """The limits that are set, by latency."""
        return {name: limit for name in LATENCIES if (limit := getattr(self, name)) is not None}

    def at(self, name: str, seconds: float) -> "Limits":
        """The limits with the one on latency `name`, which must be stated, at `seconds`."""
        return self.model_copy(update={name: getattr(self, name).at(seconds)})

    def used(self, latency_s: Callable[[Metric], Mapping[str, float]]) -> dict[Metric, float]:
        """Each limited latency divided by its limit, where it is known; `latency_s` gives its statistics in s."""
        found = {name: (limit, latency_s(name)) for name, limit in self.stated.items()}
        return {name: of[limit.statistic] / limit.seconds for name, (limit, of) in found.items() if of}


ANY_NUMBER = 999  # images of a prompt without a limit


class ImageLimit(Spec):
    """A server's limit on images (vLLM's --limit-mm-per-prompt): their number in a prompt, and their largest size.

    `tower` is False if neither images nor `videos` are allowed. Then no encoder is loaded.
    """

    count: NonNegativeInt
    height: PositiveInt | None = None
    width: PositiveInt | None = None
    tower: Flag = True
    videos: Flag = True


def _image_limit(text: str) -> dict[str, Any]:
    """Read `{"image": 0, "video": 0}`, `{"image": {"count": 1, "width": 512, "height": 512}}` and `image=2`."""
    try:
        as_json = text.lstrip().startswith("{")
        stated = json.loads(text) if as_json else dict(part.split("=") for part in text.split(","))
        counts = {name: limit if isinstance(limit, dict) else {"count": int(limit)} for name, limit in stated.items()}
        image = {"count": ANY_NUMBER, **counts.get("image", {})}
    except (ValueError, TypeError, AttributeError):
        raise ValueError('is no limit; state {"image": 0, "video": 0} or image=2') from None
    unknown = [name for name in counts if name not in ("image", "video", "audio")]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no modality; image, video and audio are")
    if any(counts.get(name, {}).get("count") != 0 for name in ("video", "audio") if name in counts):
        raise ValueError("videos and sound are not modelled; video=0 and audio=0 leave them out")
    sizes = {name: image[name] for name in ("count", "height", "width") if name in image}
    return sizes | {"tower": "video" not in counts or image["count"] > 0, "videos": "video" not in counts}


LEAST_MEAN_KEPT = 0.95  # cutting lengths at the maximum must keep this share of the mean


Length = Annotated[PositiveInt, AsNumber]


class Tokens(Spec):
    """Mean prompt and output lengths in tokens (ISL, OSL). `*_max` is the longest served length (default: the mean).

    `*_std` spreads the lengths in simulations (lognormal). If absent, all lengths are equal.
    """

    isl: Length
    osl: Length
    isl_max: Length | None = None
    osl_max: Length | None = None
    isl_std: Annotated[float, above(0, 1e9)] | None = None
    osl_std: Annotated[float, above(0, 1e9)] | None = None
    _prompts: tuple[int, ...] = ()

    @property
    def prompts(self) -> tuple[int, ...]:
        """Prompt lengths of a conversation's turns, equally frequent. Empty if requests are not turns."""
        return self._prompts

    def growing(self, prompts: tuple[int, ...]) -> Self:
        """The tokens of conversations whose turns have these `prompts`."""
        lengths = {"isl": round(sum(prompts) / len(prompts)), "isl_max": self.isl_max or max(prompts)}
        return self.model_copy(update={**lengths, "_prompts": prompts})

    def validate(self) -> None:
        """Refuse lengths whose maximum is below their mean, or cuts much of them."""
        for name in ("isl", "osl"):
            longest = getattr(self, f"{name}_max")
            if longest is not None and longest < getattr(self, name):
                given = f"{name}_max ({longest}) is below the mean {name} ({getattr(self, name)})"
                raise ValueError(f"{given}: a maximum is at least the mean")
            std = getattr(self, f"{name}_std")
            if std is None:
                continue
            if longest is None:
                raise ValueError(f"{name}_std needs {name}_max, the longest that is served")
            kept = lognormal_mean_below(getattr(self, name), std, longest) / getattr(self, name)
            if kept < LEAST_MEAN_KEPT:
                what = f"lengths with {name}_std {std:g} do not fit below {name}_max {longest}"
                mean = f"the mean would fall to {kept * getattr(self, name):.0f}"
                raise ValueError(f"{what}: {mean}; a smaller std or a larger maximum is needed")

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence served, prompt and output."""
        return (self.isl_max or self.isl) + (self.osl_max or self.osl)


class Serving(Spec):
    """How the engine is run. Absent fields take the defaults of the engine version.

    `expert_imbalance` is the measured load of the busiest expert rank over the mean (absent: random routing).
    `redundant_experts` is the number of extra copies of popular experts in a layer (EPLB). `kv_cache_bytes` sets the cache of a
    GPU regardless of the memory fraction. `max_total_tokens` limits its tokens. `cpu_offload_gb` GiB of a GPU's weights stay in
    host memory and are read in every step; with `prefetch` they are read during earlier layers. `pp_layers` lists the layers of
    each pipeline stage. `language_model_only` omits the image encoder. `mamba_full_memory_ratio` is the memory of recurrent
    states over that of tokens, and `max_mamba_cache_size` is the number of states (SGLang).
    """

    engine: Text = "vllm"
    tp: GroupSize | None = None
    pp: GroupSize | None = None
    ep: GroupSize | None = None
    dp: GroupSize | None = None
    cp: GroupSize | None = None
    dcp: GroupSize | None = None
    all2all_backend: Backend | None = None
    expert_imbalance: Imbalance | None = None
    redundant_experts: Annotated[int, above(0, 4096)] | None = None
    memory_fraction: Annotated[Fraction, AsShare] | None = None
    max_model_len: PositiveInt | None = None
    max_num_seqs: MostSequences | None = None
    max_num_batched_tokens: TokensOfStep | None = None
    cuda_graphs_gib: Annotated[float, within(0, 1000)] | None = None
    kv_cache_bytes: Annotated[float, above(0, 1e15), written(parse_bytes)] | None = None
    max_total_tokens: PositiveInt | None = None
    prefix_caching: Flag | None = None
    enforce_eager: Flag | None = None
    cpu_offload_gb: Annotated[float, above(0, 10_000)] | None = None
    offload_backend: Annotated[Literal["uva", "prefetch"], AnyCase] | None = None
    pp_layers: Annotated[tuple[PositiveInt, ...], written(_whole_numbers)] | None = None
    language_model_only: Flag | None = None
    limit_mm_per_prompt: Annotated[ImageLimit, written(_image_limit)] | None = None
    mamba_full_memory_ratio: Annotated[float, above(0, 100)] | None = None
    max_mamba_cache_size: PositiveInt | None = None

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """Take the number of pipeline stages from `pp_layers` if `pp` is absent."""
        layers = data.get("pp_layers") if isinstance(data, dict) else None
        if not isinstance(layers, (str, list, tuple)) or data.get("pp") is not None:
            return data
        return {**data, "pp": len(_whole_numbers(layers) if isinstance(layers, str) else layers)}


# Fields that a profile by hour replaces.
REPLACED_BY_PROFILE = ("active_hours", "peak_to_mean")


class Planning(Spec):
    """Rules of sizing: how full replicas may run, what a user does in a day, and how the peak follows from the mean.

    `peak_to_mean` refers to the active hours. A `profile` by hour replaces both. `poisson_percentile` is the percentile of the
    requests that arrive in one second of the peak. `price_uncertainty` is the share by which prices may be higher or lower.
    """

    max_utilisation: Annotated[Fraction, AsShare] | None = None
    headroom: Growth | None = None
    objective: Annotated[Objective, AnyCase] | None = None
    layouts: Annotated[Reach, AnyCase] | None = None
    requests_per_user_per_day: RequestsEach | None = None
    active_hours: Annotated[float, above(0, 24)] | None = None
    peak_to_mean: Annotated[float, within(1, 1_000)] | None = None
    profile: StatedProfile | None = None
    poisson_percentile: Annotated[float, within(0.5, 0.999999), written(_percentile)] | None = None
    price_uncertainty: Annotated[float, Constraint(ge=0, lt=1), AsShare] | None = None

    def validate(self) -> None:
        """Refuse a profile beside what it replaces."""
        besides = [name for name in REPLACED_BY_PROFILE if getattr(self, name) is not None]
        if self.profile is not None and besides:
            both = f"profile says when the load comes, and so does {' and '.join(besides)}"
            raise ValueError(f"{both}; state one of them")

    @property
    def says_shape(self) -> bool:
        """Whether it states how the peak relates to the mean."""
        return any(value is not None for value in (self.peak_to_mean, self.active_hours, self.profile))


RESULTS = 1  # a pooling request has one result, which counts as its first token
UNCERTAIN_SECTIONS = ("demand", "planning")  # numbers in these sections may be ranges


def is_pooled(task: Any) -> bool:
    """Whether a task, as a user wrote it, is a pooling task."""
    word = task.strip().lower() if isinstance(task, str) else task
    return word in get_args(Task) and word != GENERATE


def _with_result(data: dict[str, Any]) -> dict[str, Any]:
    tokens = data.get("tokens")
    if not is_pooled(data.get("task")) or not isinstance(tokens, dict) or "osl" in tokens:
        return data
    return {**data, "tokens": {**tokens, "osl": RESULTS}}


def _as_batch(data: dict[str, Any]) -> dict[str, Any]:
    demand = data.get("demand")
    batch = isinstance(demand, dict) and demand.get("documents") is not None
    return {**data, "mode": "offline"} if batch and "mode" not in data else data


class Workload(Spec):
    """One workload, a file of workloads/traffic or a user's own.

    `gpu` names one GPU type or several to compare. `gpus` is the number of GPUs that must be enough.
    """

    name: Text | None = None
    description: Text | None = None
    model: Text
    gpu: Annotated[tuple[Text, ...], Before(_one_or_several)] = ()
    gpus: Annotated[PositiveInt, AsNumber] | None = None
    precision: Annotated[Precision, AnyCase] | None = None
    kv_precision: Annotated[KvPrecision, AnyCase] = "auto"
    task: Annotated[Task, AnyCase] = GENERATE
    tokens: Tokens
    demand: Demand | None = None
    limits: Limits = Limits()
    mode: Annotated[Literal["streaming", "sequential", "offline"], AnyCase] = "streaming"
    serving: Serving = Serving()
    planning: Planning = Planning()
    uncertain: dict[str, Range] = NO_ENTRIES
    optimisations: Optimisations = NOTHING_ASKED
    source: Text | None = None

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """Replace each range by its middle, and move the ranges to `uncertain`.

        A pooling task has one result per request unless `osl` is stated. Documents within a time are offline work.
        """
        return values.taken_out(_as_batch(_with_result(data)), UNCERTAIN_SECTIONS) if isinstance(data, dict) else data

    @property
    def pooled(self) -> bool:
        """Whether a request returns a vector or a score instead of tokens."""
        return self.task != GENERATE

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: prompt and output, or only the prompt of a pooling task."""
        return self.tokens.longest - (RESULTS if self.pooled else 0)

    @classmethod
    def check_field(cls, name: str, before: Mapping[str, Any], value: Any) -> Any:
        """Refuse limits and another mode where documents are done within a time."""
        demand = before.get("demand")
        batch = demand is not None and demand.documents is not None
        if batch and ((name == "limits" and value.stated) or (name == "mode" and value != "offline")):
            raise ValueError("documents within a time are offline work (mode offline), without limits on latency")
        return value

    def validate(self) -> None:
        """Refuse ranges of what is no number, and ends that their fields refuse."""
        values.check(self, UNCERTAIN_SECTIONS, self.uncertain)


class Defaults(OneFile, Sourced):
    """The file workloads/_defaults.yaml: planning rules for fields that a workload leaves out, with reasons."""

    FILE = "workloads/_defaults.yaml"

    max_utilisation: Fraction
    requests_per_user_per_day: Positive
    active_hours: Positive
    peak_to_mean: Positive
    peak_hours: PositiveInt
    headroom: NonNegative
    think_time_s: NonNegative
    trace_window_s: Positive
    max_gpus_per_replica: PositiveInt
    max_pp: PositiveInt
    gpus_compared: tuple[Text, ...]
    most_gpus_compared: PositiveInt


AMOUNTS = ("requests_per_s", "concurrency", "population")  # the kinds of demand of a target


class Target(Frozen):
    """How much must be served, and how fast: at most one kind of demand, with peak rates.

    `concurrency` is the number of requests in flight in a closed loop. A `population` sends requests at random times: it is the
    mean number of requests in flight or, with a think time, of users who wait or think. The rate then follows from the predicted
    E2E. Without a `confidence`, sizes are as predicted. Documents offered at once are all done `within_s`.
    """

    requests_per_s: float | None
    concurrency: int | None
    limits: Limits
    offline: bool
    max_utilisation: float
    confidence: float | None = None
    population: float | None = None
    think_time_s: float = 0.0
    within_s: float | None = None

    @property
    def documents(self) -> float | None:
        """The documents of a batch; None where the demand is no batch."""
        rate = self.requests_per_s
        return None if self.within_s is None or rate is None else rate * self.within_s

    @property
    def amount(self) -> float | None:
        """The amount of demand, in `unit`; None without demand."""
        return next((float(value) for name in AMOUNTS if (value := getattr(self, name)) is not None), None)

    @property
    def unsized(self) -> "Target":
        """The target without confidence and with a demand of 1: all that the capacity of a replica depends on."""
        rate, in_flight, people = (None if getattr(self, name) is None else 1 for name in AMOUNTS)
        kept = self.limits, self.offline, self.max_utilisation
        return Target(rate, in_flight, *kept, population=people, think_time_s=self.think_time_s, within_s=self.within_s)

    @property
    def unit(self) -> str:
        """The unit of the demand; requests/s without demand."""
        if self.population is not None and self.think_time_s > 0:
            return "users"
        return "requests/s" if self.concurrency is None and self.population is None else "requests in flight"

    def population_of(self, requests_per_s: float, e2e_s: float) -> float:
        """The number of users in flight or thinking at this rate and E2E, by Little's law."""
        return requests_per_s * (e2e_s + self.think_time_s)

    @property
    def decisive(self) -> tuple[str, ...]:
        """The metrics that decide whether a size keeps limits and demand. Offline work has no limits."""
        stated = () if self.offline else tuple(self.limits.stated)
        return stated if self.concurrency is not None else (*stated, "throughput")


class TextLengths(OneFile, Sourced):
    """The file workloads/_text.yaml: tokens per English word, words per page."""

    FILE = "workloads/_text.yaml"

    tokens_per_word: Positive
    words_per_page: Positive
