"""JSON Schemas of files that are read (workloads, profiles) and of printed results, made from their Python types."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from sizing.formats.view import INLINE, WHERE_KNOWN
from sizing.question.options import QUESTION_OPTIONS
from sizing.specs.spec import Alone, Before, Constraint, Schema, Spec, Tagged
from sizing.specs.values import COUNT_PATTERN, NO_ENTRIES, RANGE_PATTERN, count

Json = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
VERSION = 1  # schema version of files that are read; each result states its own version
# Files that are read, with their types.
READ = {
    "workload": ("specs.workload", "Workload"),
    "fleet": ("specs.fleet", "Fleet"),
    "gpu": ("specs.gpu", "Gpu"),
    "model": ("catalog.models", "ModelFile"),
    "engine": ("specs.engine", "Engine"),
    "server": ("specs.prices", "Server"),
    "deployment": ("specs.launch", "DeploymentFile"),
}
# Results that --json prints: the records of each command.
PRINTED: dict[str, tuple[tuple[str, str], ...]] = {
    "estimate": (("report.estimate", "Estimate"), ("report.measured", "MeasuredAnswer")),
    "compare": (("report.compare", "Compare"),),
    "curve": (("report.curve.record", "CurveRecord"),),
    "sweep": (("report.sweep", "Sweep"),),
    "simulate": (("report.simulate", "SimulationReport"), ("report.ticks", "TickReport")),
    "explain": (("report.listings", "TopicReport"),),
    "memory": (("report.memory", "MemoryReport"), ("report.memory", "SharedReport")),
    "step": (("report.step", "StepReport"), ("report.step", "StepPools")),
    "roofline": (("report.roofline", "RooflineReport"),),
    "whatif": (("report.whatif", "WhatIfReport"),),
    "import": (("report.imports", "Imported"),),
    "validate": (("report.validate", "ValidationReport"),),
    "calibrate": (("report.calibrate", "CalibrationReport"),),
    "plan": (("report.plan.record", "PlanReport"),),
    "cost": (("report.cost", "CostReport"),),
    "check": (("report.check", "CheckReport"),),
    "deploy": (("launch.deploy", "StartFiles"),),
    "config": (("report.settings", "SettingsReport"), ("report.settings", "KnownReport")),
    "listing": (("report.listings", "Listing"), ("report.listings", "Entry")),
}
RESULT = "result"
NUMBERS_WITH_RANGES = ("Demand", "Sessions", "CallsPerYear", "DocumentsPerYear", "Planning")


def names() -> tuple[str, ...]:
    """The schemas that can be asked for."""
    return (*READ, RESULT, *PRINTED)


def schema(name: str) -> Json:
    """The schema of a file that is read, of the result of one command, or of any result."""
    if name in READ:
        return _read(name)
    if name == RESULT:
        return {
            "$schema": DIALECT,
            "title": "Any result of llmsize with --json",
            "anyOf": [{"$ref": f"#/$defs/{one}"} for one in PRINTED],
            "$defs": {one: {key: value for key, value in schema(one).items() if key != "$schema"} for one in PRINTED},
        }
    found = [_record(getattr(import_module(f"sizing.{module}"), record)) for module, record in PRINTED[name]]
    return {"$schema": DIALECT, **(found[0] if len(found) == 1 else {"anyOf": found})}


# --- what is read ------------------------------------------------------------------------------------------------------


TYPES = {str: "string", int: "integer", bool: "boolean", type(None): "null", float: "number"}
OF_CONSTRAINTS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "words": "description",
}
OF_LENGTHS = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}


def _read(name: str) -> Json:
    module, file = READ[name]
    specs: dict[str, Json] = {}
    whole = _spec(getattr(import_module(f"sizing.{module}"), file), specs)
    for of in NUMBERS_WITH_RANGES:
        for field in specs.get(of, {}).get("properties", {}).values():
            _with_range(field)
    found = {"$schema": DIALECT, "$id": f"urn:llmsize:{name}:{VERSION}"}
    whole = {**found, **({"$defs": dict(sorted(specs.items()))} if specs else {}), **whole}
    if name == "workload":
        _described(whole)
    return whole


def _spec(spec: type[Spec], specs: dict[str, Json]) -> Json:
    """The schema of a mapping with the fields of a spec, whose docstring is the description. `specs` gets those of its fields."""
    properties = {}
    for name, field in spec.model_fields.items():
        default = {} if field.required or field.default is NO_ENTRIES else {"default": _default(field.default)}
        properties[field.alias or name] = dict(sorted((default | _written(field.annotation, specs)).items()))
    required = [field.alias or name for name, field in spec.model_fields.items() if field.required]
    of = {
        "additionalProperties": False,
        "description": " ".join((spec.__doc__ or "").split()),
        "properties": properties,
    }
    return {**of, **({"required": required} if required else {}), "title": spec.__name__, "type": "object"}


def _default(value: Any) -> Any:
    if isinstance(value, Spec):
        return {field.alias or name: _default(getattr(value, name)) for name, field in value.model_fields.items()}
    return list(value) if isinstance(value, tuple) else value


def _sorted(found: Any) -> Any:
    if isinstance(found, list):
        return [_sorted(each) for each in found]
    return {key: _sorted(found[key]) for key in sorted(found)} if isinstance(found, dict) else found


def _written(declared: Any, specs: dict[str, Json]) -> Json:
    """The schema of values as people write them (`90%`, `p95:1s`, names), not of the values that they are read into."""
    origin, inner = get_origin(declared), get_args(declared)
    if origin is Annotated:
        stated = next((mark.value for mark in inner if isinstance(mark, Schema)), None)
        if stated is not None:
            return _sorted(stated)  # type: ignore[no-any-return]
        found = _written(inner[0], specs)
        for mark in inner[1:]:
            found = _marked(found, mark, inner[0])
        return found
    if origin in (Union, types.UnionType):
        return {"anyOf": _flattened(_written(each, specs) for each in inner)}
    if origin is Literal:
        return {"enum": list(inner), "type": "string"} if len(inner) > 1 else {"const": inner[0], "type": "string"}
    if origin is dict:
        return {"additionalProperties": _written(inner[1], specs) or True, "type": "object"}
    if origin is not None:
        return {"items": _written(inner[0], specs), "type": "array"}
    if isinstance(declared, type) and issubclass(declared, Spec):
        if declared.__name__ not in specs:
            specs[declared.__name__] = {}  # named before its fields, which may be of the same spec
            specs[declared.__name__] = _spec(declared, specs)
        return {"$ref": f"#/$defs/{declared.__name__}"}
    return {"type": TYPES[declared]} if declared in TYPES else {}


def _marked(found: Json, mark: Any, declared: Any) -> Json:
    """The schema of a value with what its annotation adds."""
    if isinstance(mark, Alone):
        return {}
    if isinstance(mark, Constraint):
        lengths = zip(
            OF_LENGTHS.get(found.get("type", ""), ()), (mark.min_length or None, mark.max_length), strict=False
        )
        stated = {name: getattr(mark, own) for own, name in OF_CONSTRAINTS.items()} | dict(lengths)
        return _sorted(found | {name: value for name, value in stated.items() if value is not None}) if found else found
    if isinstance(mark, Tagged):
        fields = {spec["$ref"].rpartition("/")[2]: spec["$ref"] for spec in found["anyOf"]}
        of = {
            tag: fields[spec.__name__]
            for spec in get_args(declared)
            for tag in get_args(spec.model_fields[mark.value].annotation)
        }
        return {"discriminator": {"mapping": _sorted(of), "propertyName": mark.value}, "oneOf": found["anyOf"]}
    if not isinstance(mark, Before) or "enum" in found:  # a word is read in any case
        return found
    return {
        "anyOf": _flattened([found, {**({"pattern": COUNT_PATTERN} if mark.value is count else {}), "type": "string"}])
    }


def _flattened(found: Iterable[Json]) -> list[Json]:
    """The alternatives of all schemas."""
    return [branch for each in found for branch in (each["anyOf"] if each.keys() == {"anyOf"} else [each])]


def _with_range(field: Json) -> None:
    """Let a number also be a range, such as 2..5."""
    branches = field.get("anyOf", [field])
    if any(branch.get("type") in ("number", "integer") for branch in branches):
        kept: Json = {key: field.pop(key) for key in ("default", "description") if key in field}
        whole = field.pop("anyOf", None) or [dict(field)]
        field.clear()
        field |= {"anyOf": [*whole, {"type": "string", "pattern": RANGE_PATTERN}], **kept}


def _described(whole: Json) -> None:
    """Describe each field with the help of the option that states it."""
    for option in QUESTION_OPTIONS:
        found = whole
        for step in (option.field or "").split("."):
            found = _inside(found, whole).get("properties", {}).get(step, {})
        if found:
            found.setdefault("description", option.help)


def _inside(found: Json, whole: Json) -> Json:
    """The schema of the mapping that a field holds."""
    for branch in (found, *found.get("anyOf", ()), *found.get("allOf", ())):
        if "$ref" in branch:
            target: Json = whole["$defs"][branch["$ref"].rpartition("/")[2]]
            return target
    return found


# --- what is printed ---------------------------------------------------------------------------------------------------


def _record(record: Any) -> Json:
    """The schema of a record, which JSON writes as an object. The record's docstring is the description."""
    hints, defaults = _hints(record), record._field_defaults
    every = list(_flat(hints))
    properties = {name: _value(hint) for _, name, hint in every}
    required = [name for of, name, _ in every if not {of, name} & {*OPTIONAL, *defaults}]  # others came later
    if "schema" in properties:
        properties |= {"schema": {"const": defaults["schema"]}, "version": {"type": "string"}}
    if RUNS in properties:  # the record itself holds the figures of a single run
        properties |= properties[RUNS]["items"]["properties"]
    described = {"description": " ".join(record.__doc__.split())} if record.__doc__ else {}
    return {"title": record.__name__, **described, "type": "object", "properties": properties, "required": required}


def _flat(hints: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (field, name, type). The fields of a record in a field of `INLINE` are named one by one, with any type of each."""
    for name, hint in hints.items():
        records = (get_args(hint) or (hint,)) if name in INLINE else ()
        inner = [{field: kind for _, field, kind in _flat(_hints(each))} for each in records]
        if inner:
            yield from ((name, each, Union[tuple(dict.fromkeys(types[each] for types in inner))]) for each in inner[0])  # noqa: UP007
        else:
            yield name, name, hint


RUNS = "runs"
OPTIONAL = ("explanations", RUNS, *WHERE_KNOWN)  # left out if empty


def _hints(record: Any) -> dict[str, Any]:
    """The types of a record's fields, including types that its file imports only for the type checker."""
    known: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(record, localns=known)
        except NameError as error:
            missing, file = str(error.name), ast.parse(inspect.getsource(inspect.getmodule(record)))  # type: ignore[arg-type]
            lines = (node for node in ast.walk(file) if isinstance(node, ast.ImportFrom))
            of = next(node.module for node in lines if missing in [alias.name for alias in node.names])
            known[missing] = getattr(import_module(str(of)), missing)


def _value(hint: Any) -> Json:
    origin, inner = get_origin(hint), get_args(hint)
    if hasattr(hint, "_fields"):
        return _record(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_value(one) for one in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _value(inner[1])}
    if origin is tuple and inner[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [_value(one) for one in inner]}
    if origin is not None:
        return {"type": "array", "items": _value(inner[0])}
    # A float that is not finite is null.
    of = {str: "string", int: "integer", bool: "boolean", type(None): "null", float: ["number", "null"]}
    return {"type": of[hint]} if hint in of else {}


def versions() -> Iterator[tuple[str, Json]]:
    """Every schema by its version."""
    for name in READ:
        yield f"llmsize.{name}/{VERSION}", _read(name)
    for name in PRINTED:
        found = schema(name)
        for each in found.get("anyOf", (found,)):
            yield each["properties"]["schema"]["const"], each
