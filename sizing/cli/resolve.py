"""From options to a resolved question: the catalogue's files, looked up by what the user wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sizing import request as requests
from sizing.catalog import gpus, workloads
from sizing.catalog.models import FoundModel
from sizing.catalog.names import Found
from sizing.cli.collecting import Part, check
from sizing.cli.named import FILES, Catalog, Named, named
from sizing.cli.options import Opt
from sizing.errors import Fault, InputError
from sizing.report.inputs import Asked
from sizing.request import Data, GpuOption, Request
from sizing.specs.workload import Workload


class Question(NamedTuple):
    """A request with the options to search over and the data to read."""

    asked: Asked
    request: Request
    options: tuple[GpuOption, ...]
    precisions: tuple[str | None, ...]
    data: Data


def data() -> Data:
    """Return the data files that every evaluation reads."""
    return Data(gpus.load_assumptions().spec, gpus.borrowed, gpus.load_formats().spec, workloads.load_defaults().spec)


def question(
    workload: str | Found[Workload] | None,
    options: tuple[Opt, ...],
    values: Mapping[str, Any],
    *besides: Part[Any],
    catalog: Catalog = FILES,
    read: Data | None = None,
) -> Question:
    """Look up everything that a workload and options name, and resolve the request.

    A quantised checkpoint's name (`...-FP8`) sets the precision where neither workload nor option does. Raises InputError
    with all faults that can be known, those of `besides` too. `read` are the data files where they are read already.
    """
    names = named(workload, options, values, catalog=catalog)
    read = data() if read is None else read
    budget = Part(lambda: positive(values.get("gpus"), "--gpus"))
    growth = Part(lambda: _check_headroom(names.workload.value, values))
    request = Part(lambda: _request(names, budget, read), names.origin.by_field)
    check(*besides, *names.parts, budget, growth, request)
    asked = asked_of(names, read)
    return Question(asked, request.value, asked.options, asked.precisions, read)


def asked_of(names: Named, read: Data) -> Asked:
    """Return what the user wrote beside what it was resolved to; every part of it must have been read."""
    model, stated = names.model.value, names.workload.value
    precisions = names.precisions.value
    if precisions == (None,):
        precisions = (stated.precision or model.precision,)
    return Asked(
        workload=stated,
        workload_name=names.name,
        model_id=model.id,
        model_matched_from=model.matched_from,
        options=told_apart(names.options),
        gpus_matched_from=names.gpus_matched,
        precisions=precisions,
        defaults=read.defaults,
        notes=notes_of(model),
    )


def told_apart(options: tuple[GpuOption, ...]) -> tuple[GpuOption, ...]:
    """Return GPU types with a mark on those whose name another one has too."""
    times = Counter(option.gpu.name for option in options)
    return tuple(replace(option, shares_name=times[option.gpu.name] > 1) for option in options)


def _request(names: Named, budget: Part[int | None], read: Data) -> Request:
    model, (engine, version) = names.model.value, names.engine.value
    return requests.resolve(
        with_cache_of(names.workload.value, model),
        model.spec,
        engine,
        version,
        read.defaults,
        gpu_budget=budget.value,
    )


def with_cache_of(workload: Workload, model: FoundModel) -> Workload:
    """Return a workload with the cache precision that the checkpoint's name says, where it states none itself."""
    kv = workload.kv_precision if workload.kv_precision != "auto" else model.kv_precision
    return workload.model_copy(update={"kv_precision": kv})


def notes_of(model: FoundModel) -> tuple[str, ...]:
    """Return what is to be noted of a model's name."""
    return (model.precision_note,) if model.precision_note else ()


def positive(value: int | None, option: str) -> int | None:
    """Return a count as given. Raises InputError below 1."""
    if value is not None and value < 1:
        raise InputError(Fault(f"{value} must be at least 1", field=option))
    return value


def _check_headroom(workload: Workload, values: Mapping[str, Any]) -> None:
    """Refuse growth of nothing: GPUs alone, or offline work, state no demand."""
    if values.get("headroom") is not None and workload.demand is None:
        raise InputError(
            Fault("there is no demand to grow", field="--headroom", allowed="with --rps, --concurrency or --dau")
        )
