"""From options to a resolved question: the catalogue's files, looked up by what the user wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

from sizing import request as requests
from sizing import settings
from sizing.catalog import engines, gpus, models, workloads
from sizing.cli.options import Opt, comma_separated, overrides
from sizing.errors import Fault, InputError, nearest
from sizing.prices import typical_price
from sizing.report.inputs import Asked
from sizing.request import Data, GpuOption, Request
from sizing.specs.engine import Engine
from sizing.specs.workload import Precision, Workload


class Question(NamedTuple):
    """A request with the options to search over and the data to read."""

    asked: Asked
    request: Request
    options: tuple[GpuOption, ...]
    precisions: tuple[str | None, ...]
    data: Data


def workload_of(workload: str | None, options: Iterable[Opt], values: Mapping[str, Any]) -> tuple[Workload, str | None]:
    """Return the workload of a file or ready name with the options over it, and its name."""
    found = workloads.load_workload(workload) if workload else None
    given, names = overrides(options, values)
    if found is None and "model" not in given:
        raise InputError(
            Fault("no workload and no model", field="--model", allowed="a workload file or name, or --model")
        )
    precisions = precisions_of(values)
    if len(precisions) == 1 and precisions[0] is not None:
        given["precision"] = precisions[0]
        names["precision"] = "--precision"
    resolved = workloads.override(found.spec if found else None, given, names)
    return resolved, found.id if found else None


def precisions_of(values: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return the weight precisions asked for with commas; (None,) leaves the choice to workload and checkpoint."""
    text = values.get("precision")
    if text is None:
        return (None,)
    known = get_args(Precision)
    names = known if text == "all" else tuple(comma_separated(text.lower()))
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise InputError(
            [
                Fault(
                    f"{name!r} is no weight precision",
                    field="--precision",
                    allowed=", ".join(known),
                    nearest=nearest(name, known),
                )
                for name in wrong or ("",)
            ]
        )
    return tuple(dict.fromkeys(names))


def data() -> Data:
    """Return the data files that every evaluation reads."""
    return Data(gpus.load_assumptions().spec, gpus.borrowed, gpus.load_formats().spec, workloads.load_defaults().spec)


def gpu_options(names: Iterable[str], price: float | None) -> tuple[tuple[GpuOption, ...], dict[str, str]]:
    """Return the GPU types named (`all`, or none: every one of the catalogue) with prices, and what names matched."""
    wanted = tuple(names)
    if not wanted or "all" in wanted:
        wanted = gpus.gpu_names()
    if price is not None and not 0 < price < float("inf"):
        raise InputError(Fault(f"{price:g} must be above zero", field="--price"))
    options: dict[str, GpuOption] = {}
    matched: dict[str, str] = {}
    faults: list[Fault] = []
    for name in wanted:
        try:
            found = gpus.load_gpu(name)
        except InputError as error:
            faults += error.faults
            continue
        typical = (price, "as asked") if price is not None else typical_price(found.spec)
        options[found.id] = GpuOption(found.id, found.spec, *typical)
        if found.matched_from:
            matched[found.id] = found.matched_from
    if faults:
        raise InputError(faults)
    return tuple(options.values()), matched


def engine_of(text: str) -> tuple[Engine, str]:
    """Return an engine and its version, the newest known where none is named."""
    found, version = engines.load_engine(text)
    return found.spec, settings.check_version(found.spec, version)


def question(workload: Workload, name: str | None, values: Mapping[str, Any]) -> Question:
    """Look up everything that a workload names and resolve the request.

    A quantised checkpoint's name (`...-FP8`) sets the precision where neither workload nor option does.
    """
    model = models.load_model(workload.model)
    options, matched = gpu_options(workload.gpu, values.get("price"))
    engine, version = engine_of(workload.serving.engine)
    read = data()
    kv = workload.kv_precision if workload.kv_precision != "auto" else model.kv_precision
    request = requests.resolve(
        workload.model_copy(update={"kv_precision": kv}),
        model.spec,
        engine,
        version,
        read.defaults,
        gpu_budget=_positive(values.get("gpus"), "--gpus"),
    )
    precisions = precisions_of(values)
    if precisions == (None,):
        precisions = (workload.precision or model.precision,)
    notes = (model.precision_note,) if model.precision_note else ()
    asked = Asked(
        workload=workload,
        workload_name=name,
        model_id=model.id,
        model_matched_from=model.matched_from,
        options=options,
        gpus_matched_from=matched,
        precisions=precisions,
        defaults=read.defaults,
        notes=notes,
    )
    return Question(asked, request, options, precisions, read)


def _positive(value: int | None, option: str) -> int | None:
    if value is not None and value < 1:
        raise InputError(Fault(f"{value} must be at least 1", field=option))
    return value
