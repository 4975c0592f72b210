"""Look up the names of a workload and its options: workload, model, GPU types, engine, precisions.

Each GPU type gets its price per hour: as stated, a provider's offer, or the typical price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from sizing.catalog import models, prices, profiles, workloads
from sizing.catalog.files import read_yaml, resolved
from sizing.catalog.models import FoundModel, as_format
from sizing.catalog.prices import PriceRule
from sizing.catalog.shelf import Found, only
from sizing.catalog.workloads import Words, load_workload
from sizing.model import settings
from sizing.question.options import QUESTION_OPTIONS, SESSION, THINK_TIME, TURNS, Options, other_tools
from sizing.specs.engine import Engine
from sizing.specs.errors import Fault, FieldPath, InputError, Part, check, placed, raise_any, unknown
from sizing.specs.gpu import Gpu, GpuType
from sizing.specs.optimisations import Disaggregate, read_pools
from sizing.specs.units import comma_separated, parse_number
from sizing.specs.values import LEAST_USD_PER_HOUR, MOST_USD_PER_HOUR
from sizing.specs.workload import Defaults, Precision, Serving, Workload, is_pooled

if TYPE_CHECKING:
    from sizing.catalog.fleets import FoundFleet

ALL = "all"
# Values that complete a workload whose file cannot be read, and the fields that may depend on the file.
STAND_IN = {"model": "any", "tokens.isl": 1, "tokens.osl": 1}
NEEDS_A_FILE = ("optimisations.prefix", "demand.", "tokens.isl_", "tokens.osl_")
SEPARATE = "optimisations.disaggregate"
NO_MODEL = Fault("no workload and no model", field="--model", allowed="a workload file or name, or --model")
BLANK = Fault("names no model", field="--model", allowed="a name (llmsize models), a config.json or its folder")
ONE_GPU = "one name (llmsize gpus), or a profile's path"


def engine_of(text: str) -> tuple[Engine, str]:
    """The engine and its version; the newest known version where `text` names none."""
    found, version = profiles.load_engine(text)
    return found.spec, settings.check_version(found.spec, version)


class Catalog(NamedTuple):
    """The look-up functions. A command that looks up the same names repeatedly replaces them by caching ones."""

    model: Callable[[str], FoundModel] = models.load_model
    gpu: Callable[[str], Found[Gpu]] = profiles.load_gpu
    engine: Callable[[str], tuple[Engine, str]] = engine_of


FILES = Catalog()


class Layers(NamedTuple):
    """The sources of a workload: fields `given` by options, the option of each (`flags`), and an optional file."""

    given: Mapping[str, Any]
    flags: Mapping[str, str]
    path: Path | None

    def at(self, path: FieldPath) -> Callable[[Fault], Fault]:
        """A function that adds the place of the field `path` to a fault. A fault with a place in a file keeps it."""
        return lambda fault: self._placed(fault, path)

    def by_field(self, fault: Fault) -> Fault:
        """Add a place to a fault that names a field of the workload."""
        return self._placed(fault, tuple(fault.field.split("."))) if fault.field else fault

    def _placed(self, fault: Fault, path: FieldPath) -> Fault:
        if fault.file is not None and (fault.line is not None or fault.field is not None):
            return fault
        file, line, name = self._place(path)
        if fault.file is None:
            return replace(fault, file=file, line=line, field=name)
        place = [str(part) for part in (file, line) if part is not None]
        return replace(fault, field=": ".join([":".join(place), name] if place else [name]))

    def _place(self, path: FieldPath) -> tuple[str | None, int | None, str]:
        """File, line and name of a field; an option's place comes before the file's, as its value does.

        A ready workload is not the user's own file, so the fault names the option that can be changed.
        """
        field = ".".join(step for step in path if isinstance(step, str))
        of_demand = self.given.get("demand") if field.startswith("demand.") else None  # given as a whole
        if field in self.flags and (field in self.given or field.partition(".")[2] in (of_demand or ())):
            return None, None, self.flags[field]
        inside = [option for name, option in self.flags.items() if name.startswith(f"{field}.") and name in self.given]
        if inside:
            return None, None, ", ".join(inside)
        ready = self.path is not None and self.path.parent == workloads.SHELF.path and field in self.flags
        if self.path is not None and not ready:
            try:
                file, line, name, _ = read_yaml(self.path).place(path)
                return file, line, name
            except InputError:
                return str(self.path), None, field
        return None, None, self.flags.get(field, field)


class Names(NamedTuple):
    """The names of a workload and its options. Each part has a value or its faults.

    `left_out` says what the workload states of its own model, where an option names another model.
    """

    layers: Layers
    found: Part[Found[Workload] | None]
    workload: Part[Workload]
    model: Part[FoundModel]
    gpus: Part[tuple[Found[Gpu], ...]]
    price: Part[PriceRule]
    engine: Part[tuple[Engine, str]]
    precisions: Part[tuple[str | None, ...]]
    contradictions: Part[None]
    left_out: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Part[Any], ...]:
        """All parts, to check them together."""
        return tuple(part for part in self if isinstance(part, Part))

    @property
    def name(self) -> str | None:
        """The workload's name; None without one."""
        return self.found.value.id if self.found.value else None

    @property
    def gpu_types(self) -> tuple[GpuType, ...]:
        """The GPU types with their planning prices, without types that the stated provider does not offer."""
        rule = self.price.value
        return tuple(rule.priced(found) for found in self.gpus.value if rule.offers(found))

    @property
    def unsold(self) -> tuple[str, ...]:
        """The GPU types that the stated provider does not offer."""
        return tuple(found.spec.name for found in self.gpus.value if not self.price.value.offers(found))

    def priced(self, gpu: Found[Gpu]) -> GpuType:
        """A GPU type with its planning price."""
        return self.price.value.priced(gpu)

    @property
    def gpus_matched(self) -> dict[str, str]:
        """The GPU names as written, by profile id, where they differ from the profile's name."""
        return {found.id: found.matched_from for found in self.gpus.value if found.matched_from}


def look_up(
    workload: str | Found[Workload] | None,
    options: Options,
    *,
    single: bool = False,
    tokens: Mapping[str, int] | None = None,
    no_model: Fault = NO_MODEL,
    catalog: Catalog = FILES,
) -> Names:
    """Look up the names of a workload (file, ready name, or a workload found before) and of the options that override it.

    `single` allows only one GPU type and one precision. `tokens` replace lengths that come from elsewhere. `no_model` is the
    fault where nothing names a model.
    """
    given, flags = dict(options.fields), dict(options.flags)
    if single and "gpu" not in given and (gpu := gpu_of_decode(given.get(SEPARATE))) is not None:
        given["gpu"] = comma_separated(gpu)
    if tokens is not None:
        given["tokens"] = tokens
    whole_file = Part(lambda: workload_at(workload) if isinstance(workload, str) else workload)
    precisions = Part(lambda: precisions_of(options.precision, single=single))
    if not precisions.faults and len(precisions.value) == 1 and precisions.value[0] is not None:
        given["precision"], flags["precision"] = precisions.value[0], "--precision"
    left_out, found = _without_other_model(whole_file, given, catalog)
    _give_users_think_time(given, flags, found)
    file = None if found.faults else found.value
    layers = Layers(given, flags, file.path if file is not None and file.path.name else None)  # options are of no file
    stated = partial(_stated, given, found)

    def model_name() -> str:
        name = stated("model")
        if name is None:  # then there is no workload either
            raise InputError(no_model)
        if not str(name).strip():
            raise InputError(BLANK)
        return str(name)

    named = Part(lambda: catalog.model(model_name()), layers.at(("model",)))
    own_task = None if named.faults else named.value.task
    if own_task is not None and (file is None or "task" not in file.spec.model_fields_set):
        given.setdefault("task", own_task)  # the checkpoint's task, unless an option or the workload states one

    def whole() -> Workload:
        if found.faults or stated("model") is None:  # report the faults of options too
            left = NEEDS_A_FILE if found.faults else ()
            alone = {field: value for field, value in given.items() if not field.startswith(left)}
            workloads.override(None, {**STAND_IN, **alone}, flags)
        model_name()
        _check_longest(found.value, given)
        lengths, spec = () if tokens else options.of("tokens"), found.value.spec if found.value else None
        return workloads.with_own_lengths(spec, given, flags, lengths, options.configured)

    found_gpus = Part(lambda: _gpus(tuple(stated("gpu", ())), layers, catalog, single=single))
    return Names(
        layers=layers,
        found=found,
        workload=Part(whole),
        model=Part(lambda: served_as(named.value, stated("task")), layers.at(("model",))),
        gpus=found_gpus,
        price=Part(lambda: price_rule(options, found_gpus, catalog.gpu)),
        engine=Part(lambda: _engine(catalog, given, found, found_gpus), layers.at(("serving", "engine"))),
        precisions=precisions,
        contradictions=Part(lambda: raise_any(options.faults)),
        left_out=left_out,
    )


def _check_longest(workload: Found[Workload] | None, given: Mapping[str, Any]) -> None:
    """Raise InputError for a stated length above the longest that the workload states."""
    if workload is None:
        return
    faults = []
    for name in ("isl", "osl"):
        stated, longest = given.get(f"tokens.{name}"), getattr(workload.spec.tokens, f"{name}_max")
        if isinstance(stated, int) and longest is not None and f"tokens.{name}_max" not in given and stated > longest:
            what = f"{stated:,} is above the longest of the workload {workload.id}, {longest:,} tokens ({name}_max)"
            faults.append(Fault(what, field=f"--{name}", remedy=f"add --{name}-max"))
    raise_any(faults)


OF_MODEL = ("precision", "kv_precision", "optimisations.speculative", "optimisations.sparsity")  # stated of one model


def _without_other_model(
    workload: Part[Found[Workload] | None], given: Mapping[str, Any], catalog: Catalog
) -> tuple[tuple[str, ...], Part[Found[Workload] | None]]:
    """A workload without what it states of its model where `given` names another model, and what that was.

    A format, a draft and pruned weights are of a checkpoint, so another checkpoint is served as if it were asked for alone.
    """
    file = None if workload.faults else workload.value
    if file is None or given.get("model") is None:
        return (), workload
    try:
        asked = catalog.model(str(given["model"]))
        same = asked.id == catalog.model(file.spec.model).id
    except InputError:  # reported where the model is looked up
        return (), workload
    fields = (
        [] if same else [field for field in OF_MODEL if not any(f"{name}.".startswith(f"{field}.") for name in given)]
    )
    spec, left = workloads.without(file.spec, fields) if fields else (file.spec, ())
    if not left:
        return (), workload
    told = ", ".join(_of(field, value) for field, value in left)
    unquantised = asked.precision is None and asked.spec.quantisation.method is None
    narrow = [value for field, value in left if field == "precision" and value != "bf16" and unquantised]
    spared = "".join(f"; --precision {value} may save GPUs" for value in narrow)
    return (f"{told} of {file.id}, stated for {file.spec.model}{spared}",), Part(lambda: replace(file, spec=spec))


def _of(field: str, value: Any) -> str:
    """A field with its value; of a draft and of pruned weights only the name."""
    name = field.rpartition(".")[2].replace("_", " ")
    return name if isinstance(value, dict) else f"{name} {value}"


def _engine(
    catalog: Catalog,
    given: Mapping[str, Any],
    workload: Part[Found[Workload] | None],
    found_gpus: Part[tuple[Found[Gpu], ...]],
) -> tuple[Engine, str]:
    """The stated engine, else the engine of a profile's own runs, else the default.

    Raises InputError where a profile's own runs are of another engine.
    """
    types = () if found_gpus.faults else found_gpus.value
    own = [(one.spec.name, one.spec.own_runs) for one in types if one.spec.own_runs is not None]
    name = _stated(given, workload, "serving.engine", Serving.model_fields["engine"].default)
    says = workload.value is not None and "engine" in workload.value.spec.serving.model_fields_set
    if own and "serving.engine" not in given and not says:
        name = f"{own[0][1].engine}:{own[0][1].engine_version}"
    if own and profiles.load_engine(name) == (
        profiles.load_engine(own[0][1].engine)[0],
        None,
    ):  # named without a version
        name = f"{name}:{own[0][1].engine_version}"
    chosen = catalog.engine(name)
    others = [(name, runs.engine) for name, runs in own if runs.engine != chosen[0].name]
    if others:
        name, engine = others[0]
        message = f"{chosen[0].name} was not run on {name}, whose own runs are of {engine}"
        raise InputError(Fault(message, allowed=f"{engine}, or the profile that it extends"))
    return chosen


def _stated(given: Mapping[str, Any], workload: Part[Found[Workload] | None], field: str, default: Any = None) -> Any:
    """The value of a field: the option's, else the workload's, else `default`."""
    if field in given:
        return given[field]
    value: Any = workload.value.spec if workload.value is not None else None
    for step in field.split("."):
        value = getattr(value, step, None)
    return default if value is None else value


def _give_users_think_time(
    given: dict[str, Any], flags: dict[str, str], workload: Part[Found[Workload] | None]
) -> None:
    """Apply a stated think time to a workload's users, and only to them where no conversation has turns."""
    spec = None if workload.faults or workload.value is None else workload.value.spec
    if spec is None or spec.demand is None or spec.demand.concurrent_users is None or "demand" in given:
        return
    if (thinks := given.get(THINK_TIME)) is not None:
        given["demand.think_time"], flags["demand.think_time"] = thinks, flags[THINK_TIME]
        if spec.optimisations.prefix is None and TURNS not in given:
            del given[THINK_TIME]


def served_as(found_model: FoundModel, task: str | None) -> FoundModel:
    """The model as the task runs it: without an output head for a pooling task.

    Raises InputError for an encoder in a generating task.
    """
    if found_model.spec.encoder and task is not None and not is_pooled(task):
        what = f"{found_model.spec.name} is an encoder: it generates nothing"
        raise InputError(what, remedy="use --task embed, classify or score")
    return replace(found_model, spec=replace(found_model.spec, pooled=True)) if is_pooled(task) else found_model


def precisions_of(text: str | None, *, single: bool = False) -> tuple[str | None, ...]:
    """The weight precisions of a comma-separated list; (None,) leaves the choice to workload and checkpoint."""
    if text is None:
        return (None,)
    known, faults = get_args(Precision), list[Fault]()
    names = [name for part in comma_separated(text.lower()) for name in (known if part == ALL else (part,))]
    for name in names or ("",):
        if name not in known:
            faults.append(as_format(unknown(name, "weight precision", known, field="--precision"), name))
    raise_any(faults)
    if single and len(set(names)) > 1:
        raise InputError("looks at one precision at a time", field="--precision", allowed="one name")
    return tuple(dict.fromkeys(names))


def _gpus(wanted: tuple[str, ...], layers: Layers, catalog: Catalog, *, single: bool) -> tuple[Found[Gpu], ...]:
    """The named profiles, each once; without names, the default ones. Raises InputError with every fault."""
    if not wanted and "gpu" in layers.given:
        raise InputError("names no GPU type", field="--gpu", allowed=f"a name (llmsize gpus), a path, or {ALL}")
    if single and not wanted:
        raise InputError("is needed", field="--gpu", allowed=ONE_GPU)
    choice = f"-g with one of {', '.join(wanted)}" if len(wanted) > 1 else ONE_GPU
    several = Fault("looks at one GPU type at a time", allowed=choice)
    is_several = single and (len(wanted) > 1 or wanted[0].strip().lower() == ALL)
    faults = [layers.at(("gpu",))(several)] if is_several else []
    parts = [
        Part(partial(catalog.gpu, each), layers.at(("gpu", index)))
        for index, name in enumerate(wanted)
        for each in (profiles.GPUS.ids if name.strip().lower() == ALL else (name,))
    ]
    raise_any((*faults, *(fault for part in parts for fault in part.faults)))
    found = [part.value for part in parts]
    return _distinct(found) if len(found) > 1 else tuple(found or map(catalog.gpu, only(Defaults).gpus_compared))


def _distinct(gpus: Sequence[Found[Gpu]]) -> tuple[Found[Gpu], ...]:
    """Each profile once. A file with the same stem as an earlier one is identified by its path."""
    distinct: dict[str, Found[Gpu]] = {}
    for profile in {resolved(profile.path): profile for profile in gpus}.values():
        unique = profile if profile.id not in distinct else replace(profile, id=str(profile.path))
        distinct[unique.id] = unique
    return tuple(distinct.values())


def gpu_of_decode(text: str | None) -> str | None:
    """The GPU type of the decode pool if both pools name one, so that --gpu is not needed; else None."""
    try:
        wanted = None if text is None else Disaggregate.model_validate(read_pools(text))
    except ValueError:  # reported where the workload is read
        return None
    return wanted.decode.gpu if wanted is not None and wanted.prefill.gpu is not None else None


ALLOWED = "a price for all (2.5), or one of each GPU type (h100-sxm=2.5,h200-sxm=3.1)"
Gpus = Part[tuple[Found[Gpu], ...]]  # read only where a price needs it, so that its faults do not hide those of prices


def price_rule(options: Options, considered: Gpus, look_up: Callable[[str], Found[Gpu]]) -> PriceRule:
    """The planning prices that options state. Raises InputError for an invalid price, and for an unknown offer or GPU type."""
    if options.provider is not None:
        return _of_provider(options.provider, options.price, considered)
    if not isinstance(options.price, str):
        return PriceRule(checked_price(options.price))
    waits = "price" in options.configured  # a setting may price GPU types that this question does not consider
    items = comma_separated(options.price)
    parts = [Part(partial(_price_of, item, considered, look_up, waits=waits)) for item in items]
    check(*parts)
    by_id: dict[str, float] = {}
    for id_, price in (part.value for part in parts):
        if by_id.setdefault(id_, price) != price:
            raise InputError(f"states two prices of {id_}", field="--price", allowed="one")
    return PriceRule(by_id=by_id)


def _of_provider(text: str, price: float | str | None, considered: Gpus) -> PriceRule:
    if price is not None:
        message = "contradicts --price, which says what a GPU-hour costs"
        raise InputError(message, field="--provider", remedy="state one of them")
    name, kind = prices.provider_and_kind(text)
    rule = PriceRule(provider=name, kind=kind)
    if not any(map(rule.offers, considered.value)):
        prices.offers_of(considered.value[0].spec, name, rule.kind, field="--provider")
    return rule


def _price_of(item: str, considered: Gpus, look_up: Callable[[str], Found[Gpu]], *, waits: bool) -> tuple[str, float]:
    """The id of a GPU type and its price, from `h100-sxm=2.5`; a type not `considered` is a fault unless `waits`."""
    name, equals, text = (part.strip() for part in item.partition("="))
    try:
        price = parse_number(text)
    except ValueError as error:
        message = str(error) if equals else f"{item!r} is the price of no GPU type"
        raise InputError(message, field="--price", allowed=ALLOWED) from None
    with placed(lambda fault: replace(fault, field="--price")):
        found = look_up(name)
    ids = [each.id for each in considered.value]
    if found.id not in ids and not waits:
        raise InputError(f"{found.id} is none of the GPU types asked for", field="--price", allowed=", ".join(ids))
    checked_price(price)
    return found.id, price


def checked_price(price: float | None) -> float | None:
    """A price in $ per GPU-hour. Raises InputError where `price` is out of range."""
    if price is not None and not LEAST_USD_PER_HOUR <= price <= MOST_USD_PER_HOUR:
        allowed = f"$ per GPU-hour, from {LEAST_USD_PER_HOUR:g} to {MOST_USD_PER_HOUR:,}"
        raise InputError(f"{price:g} is out of range", field="--price", allowed=allowed)
    return price


# The think time of users is part of their demand; that of conversations has its own field.
OTHER = {"think_time": "demand.think_time"}


@cache
def words() -> Words:
    """The spellings of all options, as keys of a workload file."""
    fields, options = dict[str, str](), dict[str, str]()
    for option in QUESTION_OPTIONS:
        field = option.field or (option.name if option.name in Workload.model_fields else None)
        for flag in option.flags:
            word = flag.partition("/")[0].strip()
            if not word.startswith("--") or (field or "").startswith(f"demand.{SESSION}"):
                continue
            key = word.removeprefix("--").replace("-", "_")
            if field is None:
                options[key] = option.flags[0]
            else:
                fields[key] = field
    words = {key: flag.removeprefix("--").replace("-", "_") for key, flag in other_tools().items()}
    guesses = {key.replace("-", "_"): fields[word] for key, word in words.items() if word in fields}
    return Words(fields | OTHER, options, guesses)


def workload_at(path_or_name: str) -> Found[Workload]:
    """The workload of a file, whose keys may be spelt like options, or a ready one. Raises InputError as `load_workload` does."""
    return load_workload(path_or_name, words())


def readable(workload: str | None) -> Workload | None:
    """The workload as its file states it; None without one, and for a faulty one, whose faults are told later."""
    found = Part(lambda: None if workload is None else workload_at(workload).spec)
    return None if found.faults else found.value


def asked_of(workload: str | None, options: Options) -> Workload | None:
    """The workload of a file and options, or of options alone; None where they have faults, which are told later."""
    file = readable(workload)
    stated = options.fields if workload is not None else {**STAND_IN, **options.fields}
    found = Part(lambda: workloads.override(file, stated, options.flags))
    return None if found.faults else found.value


def fleet_at(path_or_name: str) -> FoundFleet | None:
    """The fleet of a file, whose workloads may be spelt like options, or a ready one. Raises InputError as `find_fleet` does."""
    from sizing.catalog.fleets import find_fleet  # loaded where a fleet may be asked for

    return find_fleet(path_or_name, words())
