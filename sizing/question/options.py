"""The options of commands: the rows of options.csv, what a user stated of them, and where they have no effect (rules.csv)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NewType, TypeVar, cast

from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.units import comma_separated, parse_number, parse_share, whole_number

if TYPE_CHECKING:
    from sizing.model.architecture import Layout
    from sizing.model.settings import Service
    from sizing.question.question import Question
    from sizing.specs.workload import Target, Workload

R = TypeVar("R")
YES, NO = frozenset({"yes", "true", "on", "1"}), frozenset({"no", "false", "off", "0"})


class Field(NamedTuple):
    """An option: parameter name, type, spellings, help, help panel, and its workload field (None: not in a workload)."""

    name: str
    type: Any
    flags: tuple[str, ...]
    help: str
    panel: str
    field: str | None = None

    def spelt(self, value: Any) -> str:
        """The first spelling of a value: of a switch that is off, --no-... where it has one."""
        on, _, off = self.flags[0].partition("/")
        return off if value is False and off else on


MODEL = "Model and GPUs"
DEMAND = "Tokens and demand"
LIMITS = "Latency limits"
SERVING = "Serving"
PLANNING = "Planning and cost"
OPTIMISATIONS = "Optimisations"

OF_ITS_OWN = frozenset({"closed_loop", "think_time", "within"})  # details of a demand that state none by themselves
SESSION = "sessions."  # the prefix of the fields of a demand in sessions
Share = NewType("Share", float)
Count = NewType("Count", int)
Prices = NewType("Prices", str)  # or one number
TEXT, WHOLE, NUMBER, SHARE, SWITCH = str | None, int | None, float | None, Share | None, bool | None
PRICE, LISTED = Prices | None, list[str] | None
COUNT = Count | None  # a whole number from 1 on
DISAGGREGATE = "--disaggregate"
# Commands that take separate pools.
POOLED = ("estimate", "compare", "curve", "sweep", "whatif", "step", "simulate", "cost", "report", "deploy")

TYPES: dict[str, Any] = {
    **{"text": TEXT, "whole": WHOLE, "count": COUNT, "number": NUMBER, "share": SHARE, "price": PRICE},
    **{"switch": SWITCH, "flag": bool, "list": LISTED},
}


@cache
def table_rows(file: str) -> tuple[list[str], ...]:
    """The rows of a CSV file of this room, without its head."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return tuple(csv.reader(io.StringIO(text, newline="")))[1:]


@cache
def _tables() -> tuple[tuple[str, Field], ...]:
    """The rows of options.csv, each with the name of its table."""
    return tuple(
        (table, Field(name, TYPES.get(kind), tuple(spellings.split(";")), words, panel, field or None))
        for table, name, kind, spellings, panel, field, words in table_rows("options.csv")
    )


def option_table(table: str) -> tuple[Field, ...]:
    """The options of a table of options.csv, in their order."""
    return tuple(option for of, option in _tables() if of == table and option.type is not None)


QUESTION_OPTIONS = option_table("question")


def of_panel(options: Iterable[Field], *panels: str) -> tuple[Field, ...]:
    """The options under some panels."""
    return tuple(option for option in options if option.panel in panels)


def named(options: Iterable[Field], *names: str) -> tuple[Field, ...]:
    """The options with some names."""
    return tuple(option for option in options if option.name in names)


def without(options: Iterable[Field], *names: str) -> tuple[Field, ...]:
    """The options except the ones with these names."""
    return tuple(option for option in options if option.name not in names)


def with_help(options: Iterable[Field], *tables: str) -> tuple[Field, ...]:
    """The options with the help texts of some tables of options.csv, whose rows state no type; the last table counts."""
    texts = {option.name: option.help for name in tables for of, option in _tables() if of == name and not option.type}
    return tuple(option._replace(help=texts.get(option.name, option.help)) for option in options)


MODEL_OPTIONS, LIMIT_OPTIONS, SERVING_OPTIONS = (of_panel(QUESTION_OPTIONS, name) for name in (MODEL, LIMITS, SERVING))
PEAK_OPTIONS = named(QUESTION_OPTIONS, "mean_rps", "profile", "percentile")
DEMAND_OPTIONS = tuple(option for option in of_panel(QUESTION_OPTIONS, DEMAND) if option not in PEAK_OPTIONS)
SET_OPTIONS = named(QUESTION_OPTIONS, "set")
PLANNING_OPTIONS = without(of_panel(QUESTION_OPTIONS, PLANNING), "set")
DISAGGREGATION_OPTIONS = named(QUESTION_OPTIONS, "disaggregate")
OPTIMISATION_OPTIONS = without(of_panel(QUESTION_OPTIONS, OPTIMISATIONS), "disaggregate")
WORKLOAD_OPTIONS = QUESTION_OPTIONS[:-1]  # all but separate pools
# Of one layout, without a load.
LAYOUT_OPTIONS = (*MODEL_OPTIONS, *SERVING_OPTIONS, *OPTIMISATION_OPTIONS, *DISAGGREGATION_OPTIONS)


def states_demand(option: Field) -> bool:
    """Whether an option states a demand by itself, and not a detail of another demand."""
    section, _, kind = (option.field or "").partition(".")
    return section == "demand" and kind not in OF_ITS_OWN and not kind.startswith(SESSION)


class GivenOptions(NamedTuple):
    """The options that a command takes, and the values given of them by name; None is not given.

    `settings` are the places, by name, of the values that are settings and were not given by the user now.
    """

    fields: tuple[Field, ...]
    values: Mapping[str, Any]
    settings: Mapping[str, str] = {}

    def read(self, record: Callable[..., R]) -> R:
        """A record of the options that have the names of its fields; a field without an option keeps its default."""
        names: Iterable[str] = cast(Any, record)._fields
        return record(**{name: self.values[name] for name in names if name in self.values})

    def any_of(self, names: Iterable[str]) -> bool:
        """Whether one of the options `names` is given."""
        return any(is_given(self.values.get(name)) for name in names)

    def with_(self, **values: Any) -> GivenOptions:
        """The options with other values."""
        return self._replace(values={**self.values, **values})

    def without(self, names: Iterable[str]) -> GivenOptions:
        """The options with none of `names` given."""
        return self.with_(**dict.fromkeys(names))

    def without_settings(self, names: Iterable[str] | None = None) -> GivenOptions:
        """The options without settings: of the options `names`, by default of all."""
        dropped = {name for name in self.settings if names is None or name in names}
        rest = {name: place for name, place in self.settings.items() if name not in dropped}
        return self.without(dropped)._replace(settings=rest)

    @property
    def texts_of_set(self) -> Sequence[str]:
        """The texts of --set."""
        return self.values.get("set") or ()


class _Besides(NamedTuple):
    """The options of a question that no workload has."""

    precision: str | None = None
    price: float | str | None = None
    provider: str | None = None
    confidence: str | None = None
    conservative: bool | None = False


class Options(NamedTuple):
    """Stated options: workload fields by path, and values that no workload has. `flags` are the options' spellings.

    `faults` are contradictions between options, and forms that a command does not take. `configured` names the options
    whose values are settings and were not given by the user now.
    """

    fields: Mapping[str, Any]
    flags: Mapping[str, str]
    precision: str | None = None
    price: float | str | None = None
    provider: str | None = None
    confidence: str | None = None
    conservative: bool | None = False
    faults: tuple[Fault, ...] = ()
    configured: frozenset[str] = frozenset()

    def of(self, section: str) -> tuple[str, ...]:
        """The paths of the stated fields in a section of workloads."""
        return tuple(path for path in self.fields if path.partition(".")[0] == section)

    def stated(self, fields: Iterable[Field]) -> GivenOptions:
        """The stated options of workload fields, spelt as stated and without settings, and their values by name."""
        own = without(fields, *self.configured)
        given = [(field, field.field) for field in own if field.field and field.field in self.fields]
        spelt = tuple(field._replace(flags=(self.flags[path],)) for field, path in given)
        return GivenOptions(spelt, {field.name: self.fields[path] for field, path in given})


_COUNTED_GPUS = re.compile(r"\s*([0-9]{1,7})\s*[xX]\s*([^,/\\]*[a-zA-Z][^,/\\]*)\Z")


def _counted(names: list[str], gpus: int | None, options: set[str]) -> tuple[list[str], int | None, tuple[Fault, ...]]:
    """GPU names without a count (`8xh100`), the count, and the fault of a count that is contradictory or of no use."""
    found = [match for name in names if (match := _COUNTED_GPUS.match(name))]
    if not found:
        return names, gpus, ()
    text, count = found[0][0].strip(), int(found[0][1])
    plain = [match[2].strip() if (match := _COUNTED_GPUS.match(name)) else name for name in names]
    if "gpus" not in options:
        counts = ", ".join(f"--{name}" for name in ("tp", "replicas") if name in options)
        remedy = f"use {counts}" if counts else f"write {plain[0]}"
        fault = Fault(f"{text!r} counts GPUs, and here the layout says how many", field="--gpu", remedy=remedy)
    elif len(names) > 1:
        message = f"{text!r} counts GPUs of one type, and several are named"
        fault = Fault(message, field="--gpu", allowed="one type, or --gpus N")
    elif gpus is not None and gpus != count:
        fault = Fault(f"{text!r} contradicts --gpus {gpus:,}", None, None, "--gpu", remedy="state one of them")
    else:
        return plain, count, ()
    return plain, gpus, (fault,)


def is_stated(field: Field, value: Any) -> bool:
    """Whether an option was given: zero and the "no" of a switch count as given; an unset flag does not."""
    return value is not None and (field.type is not bool or bool(value))


def read_value(field: Field, text: str) -> Any:
    """The value of an option, from the text of a command line, a setting or a variable. Raises ValueError for other text.

    What a workload reads itself stays text, so that it is checked with all other fields.
    """
    if field.type in (bool, SWITCH):
        word = text.strip().lower()
        if word not in YES | NO:
            raise ValueError(f"{text!r} is neither yes nor no")
        return word in YES
    if field.type == WHOLE:
        return _named(text, whole_number, "whole number")
    if field.type == NUMBER or (field.type == PRICE and "=" not in text):
        return _named(text, parse_number, "number")
    return parse_share(text) if field.type == SHARE and field.field is None else text


def _named(text: str, read: Callable[[str], float], noun: str) -> float:
    try:
        return read(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {noun}") from None


def options_of(given: GivenOptions) -> Options:
    """The options of a question that are given.

    A demand replaces the whole demand of a workload, so its fields come as one mapping.
    """
    of_workload = {field.field: field for field in given.fields if field.field}
    values = ((path, field, given.values.get(field.name)) for path, field in of_workload.items())
    stated: dict[str, Any] = {path: value for path, field, value in values if is_stated(field, value)}
    flags = {path: field.flags[0] for path, field in of_workload.items()}
    by_path, twice = _by_path(given.texts_of_set, stated, flags)
    stated |= by_path
    flags |= {path: f"--set {path}" for path in by_path}
    fields = {path: value for path, value in stated.items() if not path.startswith("demand.")}
    faults = tuple[Fault, ...]()
    if "gpu" in fields:
        named = fields["gpu"]
        names = comma_separated(named) if isinstance(named, str) else named
        fields["gpu"], gpus, faults = _counted(names, fields.get("gpus"), {field.name for field in given.fields})
        fields |= {} if gpus is None else {"gpus": gpus}
    demand = {path.removeprefix("demand."): value for path, value in stated.items() if path.startswith("demand.")}
    flags["demand"] = ", ".join(flags[f"demand.{key}"] for key in demand) or "--rps, --users, --dau, --concurrency"
    if set(demand) - OF_ITS_OWN:
        fields["demand"] = _demand(demand, fields, flags)
    else:  # details of the workload's own demand
        fields |= {f"demand.{name}": value for name, value in demand.items()}
    return Options(fields, flags, *given.read(_Besides), faults + twice, frozenset(given.settings))


def other_tools() -> dict[str, str]:
    """Our options by the names that engines, benchmark tools and other calculators use for them."""
    return dict(table_rows("other_tools.csv"))


_PATH = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)\s*=(.*)", re.DOTALL)
_BY_PATH = "PATH=VALUE, as demand.requests_per_s=80"


def _by_path(
    texts: Sequence[str], stated: Mapping[str, Any], flags: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[Fault, ...]]:
    """The fields that --set states by path, read as in a workload file, and the faults of invalid texts."""
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    if texts:
        from sizing.catalog.yaml import parse  # loaded where a field is set
    for text in texts:
        match = _PATH.fullmatch(text.strip())
        if match is None:
            faults.append(Fault(f"{text!r} sets no field", field="--set", allowed=_BY_PATH))
            continue
        path = match[1]
        meant = _meant(path, flags)
        if meant is not None:
            faults.append(Fault("is no field", field=f"--set {path}", allowed=_BY_PATH, nearest=meant))
            continue
        twice = next((flags[each] for each in stated if _one_holds_the_other(path, each)), None)
        if twice is None and any(_one_holds_the_other(path, each) for each in found):
            twice = "another --set"
        if twice is not None:
            faults.append(Fault(f"contradicts {twice}", field=f"--set {path}", remedy="state one of them"))
            continue
        try:
            found[path] = parse(match[2].strip(), "--set")
        except InputError as error:
            faults += [Fault(fault.message, field=f"--set {path}", allowed=fault.allowed) for fault in error.faults]
            continue
        if found[path] is None:
            faults.append(Fault("states no value", field=f"--set {path}", allowed=_BY_PATH))
    return found, tuple(faults)


def _one_holds_the_other(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _meant(path: str, flags: Mapping[str, str]) -> str | None:
    """The field meant by a path that ends in an option's name: demand.requests_per_s for demand.rps; else None."""
    section, _, last = path.rpartition(".")
    known = (field for field, flag in flags.items() if flag == f"--{last.replace('_', '-')}")
    return next((field for field in known if field != path and section in ("", field.rpartition(".")[0])), None)


THINK_TIME, TURNS = "optimisations.prefix.think_time_s", "optimisations.prefix.turns"


def _demand(demand: dict[str, Any], given: dict[str, Any], flags: dict[str, str]) -> dict[str, Any]:
    """The fields of a demand; a think time applies to the users and, where conversations have turns, to these too."""
    found = dict[str, Any]()
    for path, value in demand.items():
        kind, _, detail = path.partition(".")
        found[kind] = {**found.get(kind, {}), detail: value} if detail else value
    if "sessions" in found:
        flags.setdefault("demand.sessions.concurrent_users", flags["demand.concurrent_users"])
        users = found.pop("concurrent_users", None)
        return found if users is None else {**found, "sessions": {"concurrent_users": users, **found["sessions"]}}
    if "concurrent_users" in found and THINK_TIME in given:
        flags["demand.think_time"] = flags[THINK_TIME]
        found["think_time"] = given[THINK_TIME] if TURNS in given else given.pop(THINK_TIME)
    return found


def sets_demand(given: GivenOptions) -> bool:
    """Whether --set states a part of a demand."""
    return any(text.strip().startswith("demand.") for text in given.texts_of_set)


WITH_POOLS = {
    "plan": ": cost prices both pools over a day, and estimate --headroom sizes them with a reserve",
}


def unpooled(command: str, field: str) -> Fault:
    """The fault of separate pools for a command that does not take them."""
    remedy = f"{', '.join(POOLED)} take them{WITH_POOLS.get(command, '')}"
    return Fault(f"{command} takes no separate pools", field=field, remedy=remedy)


class Rule(NamedTuple):
    """Options that are excluded in the situation `when`, why, and the alternative; `together` makes one fault of all."""

    when: str
    options: tuple[str, ...]
    why: str
    instead: str | None = None
    together: bool = False


ALL_BUT = "ALL_BUT "  # before the options of a workload that a rule does not exclude


def group(words: str) -> tuple[str, ...]:
    """The options that words of rules.csv name: option by option, or by a group, whose name is in capitals."""
    if words.startswith(ALL_BUT):
        others = group(words.removeprefix(ALL_BUT))
        return tuple(field.name for field in WORKLOAD_OPTIONS if field.name not in others)
    groups = {name: named for name, named, *_ in table_rows("rules.csv") if name.isupper()}
    return tuple(option for word in words.split() for option in (group(groups[word]) if word.isupper() else (word,)))


@cache
def _rules() -> tuple[Rule, ...]:
    rows = (row for row in table_rows("rules.csv") if not row[0].isupper())
    return tuple(Rule(when, group(of), why, instead or None, bool(at_once)) for when, of, why, instead, at_once in rows)


def is_given(value: Any) -> bool:
    """Whether an option was given; zero counts as given."""
    return value is not None and value is not False


def broken(situations: Iterable[str], given: GivenOptions) -> list[Fault]:
    """The faults of options without effect in the situations, in the order of the table.

    A setting without effect is no fault, because it may have an effect in other questions.
    """
    holding, faults = set(situations), list[Fault]()
    rules = [rule for rule in _rules() if rule.when in holding]
    known = {field.name: field for field in given.fields} if rules else {}
    for rule in rules:
        flags = []
        for name in rule.options:
            field, value = known.get(name), given.values.get(name)
            if name not in given.settings and (is_given(value) if field is None else is_stated(field, value)):
                flags.append(f"--{name.replace('_', '-')}" if field is None else field.spelt(value))
        if rule.together and flags:
            flags = [", ".join(flags)]
        faults += [Fault(rule.why, field=flag, remedy=rule.instead) for flag in flags]
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


def check_rules(situations: Iterable[str], given: GivenOptions) -> None:
    """Raise InputError with the faults of all options that break a rule."""
    raise_any(broken(situations, given))
