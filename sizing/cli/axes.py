"""The axes of a sweep (`--vary isl=500,2000`). Each key is an option, and its values are read as that option reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sizing.answers.sweep import Axis, size
from sizing.catalog import shelf, workloads
from sizing.question.names import ALL, Catalog, checked_price, precisions_of
from sizing.question.options import LISTED, NUMBER, PRICE, SHARE, WHOLE, Field, GivenOptions, states_demand
from sizing.specs.errors import Fault, InputError, nearest, raise_any
from sizing.specs.facts import OptimisationFacts
from sizing.specs.units import LISTED_NUMBERS, comma_separated, numbers

MOST_ROWS = 1_000_000
# A valid workload with the fields that other fields depend on. If a value put into it makes it invalid, the value is wrong.
PLAIN = {"model": "any", "tokens.isl": 1, "tokens.osl": 1, "optimisations.prefix.hit": 0.5}
SESSIONS = {"concurrent_users": 1.0, "requests_per_session": 1.0, "session_length": "1h"}
NUMERIC = (WHOLE, NUMBER, SHARE, PRICE)
OF_SESSIONS = ("requests_per_session", "session_length")
OF_BATCH = {"demand.documents": 1, "demand.within": "1h"}  # which state a demand together
OF_TURNS = ("turns", "think_time", "prefix_routing")  # options without effect if a hit rate is stated


def read(texts: Sequence[str], options: Sequence[Field], given: GivenOptions, catalog: Catalog) -> tuple[Axis, ...]:
    """Read the axes in `texts`. Raises InputError with a fault for each wrong key or value."""
    varied = [option for option in options if option.type not in (bool, LISTED)]
    keys = {name: one for one in varied for name in (one.name, *(_spelt(f) for f in one.flags if f.startswith("--")))}
    faults: list[Fault] = []
    axes: list[Axis] = []
    for text in texts:
        key, equals, listed = text.partition("=")
        option = keys.get(_spelt(key))
        if not equals or option is None:
            known = ", ".join(dict.fromkeys(option.name for option in keys.values()))
            message = f"{key.strip()!r} can't be varied" if equals else f"{text!r} is not KEY=VALUES"
            faults.append(Fault(message, field="--vary", allowed=known, nearest=nearest(_spelt(key), list(keys))))
            continue
        if any(axis.name == option.name for axis in axes):
            faults.append(Fault("is varied twice", field=field_of(option), allowed="once, with all its values"))
            continue
        if given.values.get(option.name) is not None:
            faults.append(Fault("is varied, so it contradicts " + option.flags[0], field=field_of(option)))
        try:
            axes.append(Axis(option.name, _values(option, listed)))
        except ValueError as error:
            allowed = LISTED_NUMBERS if option.type in NUMERIC else "values with commas"
            faults.append(Fault(str(error), field=field_of(option), allowed=allowed))
            continue
        faults += _wrong(option, axes[-1].values, catalog)
    faults += _rivals(options, axes, given)
    if not texts:
        faults.append(Fault("is needed", field="--vary", allowed="KEY=VALUES, as isl=500,2000 or rps=1..100:10"))
    if size(axes) > MOST_ROWS:
        faults.append(Fault(f"makes {size(axes):,} rows", field="--vary", allowed=f"at most {MOST_ROWS:,}"))
    raise_any(faults)
    return tuple(axes)


def field_of(option: Field) -> str:
    """The name of a varied input in faults."""
    return f"--vary {option.name}"


def _spelt(key: str) -> str:
    return key.strip().lower().lstrip("-").replace("-", "_")


def _values(option: Field, text: str) -> tuple[Any, ...]:
    """The listed values. Raises ValueError for an empty list, and for text if the option takes a number."""
    if option.type not in NUMERIC:
        words = tuple(comma_separated(text))
        if not words:
            raise ValueError("names no value")
        return words
    found = numbers(text)
    broken = [value for value in found if option.type == WHOLE and not value.is_integer()]
    if broken:
        raise ValueError(f"{broken[0]:g} is no whole number")
    return tuple(map(int, found)) if option.type == WHOLE else found


def _wrong(option: Field, values: Sequence[Any], catalog: Catalog) -> Iterator[Fault]:
    """Yield the faults of values that are wrong in every combination: values out of range, or unknown names."""
    look_up: dict[str, Callable[[Any], Any]] = {
        "model": catalog.model,
        "gpu": lambda name: None if name.lower() == ALL else catalog.gpu(name),
        "engine": catalog.engine,
        "precision": precisions_of,
        "profile": workloads.load_profile,
        "price": checked_price,
    }
    for value in values:
        try:
            if option.field is not None:
                given = {**_plain(option), option.field: [value] if option.field == "gpu" else value}
                asked = workloads.override(None, given, {option.field: field_of(option)}).optimisations.speculative
                if asked is not None:
                    shelf.only(OptimisationFacts).method(asked.method)
            if option.name in look_up:
                look_up[option.name](value)
        except InputError as error:
            for fault in error.faults:
                own = replace(fault, line=None, field=field_of(option))
                yield fault if fault.file else own


def _plain(option: Field) -> dict[str, Any]:
    if option.name in OF_SESSIONS:
        return {**PLAIN, "demand.sessions": SESSIONS}
    if option.field in OF_BATCH:
        return {**PLAIN, **OF_BATCH}
    if option.name in OF_TURNS:
        return {**PLAIN, "optimisations.prefix.hit": None, "optimisations.prefix.turns": 2}
    return PLAIN


def _rivals(options: Sequence[Field], axes: Sequence[Axis], given: GivenOptions) -> Iterator[Fault]:
    """Yield a fault for a second kind of demand, because one would replace the other."""
    varied = {axis.name for axis in axes}
    of_demand = filter(states_demand, options)
    stated = [option for option in of_demand if option.name in varied or given.any_of([option.name])]
    if len(stated) > 1 and any(option.name in varied for option in stated):
        names = ", ".join(field_of(option) if option.name in varied else option.flags[0] for option in stated)
        yield Fault("state a demand each", field=names, allowed="one kind of demand")
