"""JSON Schemas of files that are read (workloads, profiles) and of printed results, made from their Python types."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from sizing.formats.view import INLINE, WHERE_KNOWN
from sizing.question.options import QUESTION_OPTIONS
from sizing.specs.values import COUNT_PATTERN, RANGE_PATTERN, count

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


class _AsWritten(GenerateJsonSchema):
    """The schema of values as people write them (`90%`, `p95:1s`, names), not of the values that they are read into."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> Json:
        """The schema of the value that is read, or a text for it. A choice of words stays that choice."""
        found, read = super().function_before_schema(schema), schema["function"]["function"]
        if isinstance(read, types.MethodType) or "enum" in found:  # a whole mapping, or a word in any case
            return found
        return {"anyOf": [found, {"type": "string", **({"pattern": COUNT_PATTERN} if read is count else {})}]}


def _read(name: str) -> Json:
    module, spec = READ[name]
    found: type[BaseModel] = getattr(import_module(f"sizing.{module}"), spec)
    whole = found.model_json_schema(schema_generator=_AsWritten)
    for each in (whole, *whole.get("$defs", {}).values()):
        _tidy(each)
    for of in NUMBERS_WITH_RANGES:
        for field in whole.get("$defs", {}).get(of, {}).get("properties", {}).values():
            _with_range(field)
    if name == "workload":
        _described(whole)
    return {"$schema": DIALECT, "$id": f"urn:llmsize:{name}:{VERSION}", **whole}


def _tidy(found: Json) -> None:
    """Remove titles that repeat a field's name, and write each description on one line."""
    if "description" in found:
        found["description"] = " ".join(found["description"].split())
    for field in found.get("properties", {}).values():
        field.pop("title", None)


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
