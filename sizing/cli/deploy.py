"""From options to one resolved deployment, for the commands that look at a single layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sizing.answers.resolved import Resolved, resolve
from sizing.cli.collecting import Part, check
from sizing.cli.named import Named, named
from sizing.cli.options import OPTIMISATION_OPTIONS, Opt
from sizing.cli.resolve import (
    check_asked,
    check_images,
    check_prefix,
    extras_of,
    notes_of,
    with_cache_of,
    with_images,
)
from sizing.model.architecture import SIZES, Layout
from sizing.question import question as requests
from sizing.question.question import Question, load_data
from sizing.specs.data import Data
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import GpuType
from sizing.specs.workload import Serving

# `override` validates a whole workload; these commands have no tokens of their own.
PLACEHOLDER_TOKENS = {"isl": 1, "osl": 1}
OF_TALKS = ("turns", "think_time", "prefix_routing")
SPARING = ("prefix_hit", "prefix_shared", "prefix_distinct", *OF_TALKS, "kv_offload")
NO_MODEL = Fault("is needed", field="--model", allowed="a name (llmsize models), a config.json or its folder")


def deployment(options: tuple[Opt, ...], values: Mapping[str, Any], *besides: Part[Any]) -> Resolved:
    """Return the deployment that the options describe: one model, one GPU type, one layout.

    Raises InputError with all faults that can be known, those of `besides` too.
    """
    names, read = named_alone(options, values), load_data()
    layout = Part(lambda: layout_of(names.workload.value.serving), names.origin.by_field)
    request = Part(lambda: request_alone(names, read), names.origin.by_field)
    check(*besides, *names.parts, layout, request)
    return resolved(names, request.value, names.options[0], layout.value, read)


def named_alone(options: tuple[Opt, ...], values: Mapping[str, Any]) -> Named:
    """Look up what options name that look at one model, one GPU type and one precision."""
    return named(None, options, values, single=True, tokens=PLACEHOLDER_TOKENS, no_model=NO_MODEL)


def request_alone(names: Named, read: Data) -> Question:
    """Return the request of such options, which asks nothing but what a layout holds."""
    model, (engine, version) = names.model.value, names.engine.value
    workload = with_cache_of(names.workload.value, model)
    check_asked(workload, model.spec)
    extras = extras_of(workload, model.spec)
    request = requests.without_demand(workload, model.spec, engine, version, read.defaults, extras=extras)
    check_images(with_images(workload, extras), extras, model.spec)
    check_prefix(extras, request.service.max_model_len)
    return request


def check_one_cache(values: Mapping[str, Any]) -> None:
    """Raise InputError for what says how requests come to one of several caches: here is one, and no lengths of turns."""
    _refuse(
        OF_TALKS,
        values,
        "has nothing to act on: here is one replica, which holds all prefixes, and no ISL that grows",
        "--max-model-len with the length of the last turn, --prefix-distinct with the prefixes of one replica",
    )


def resolved(names: Named, question: Question, gpu_type: GpuType, layout: Layout, read: Data) -> Resolved:
    """Return such a request on one layout of a GPU type; every part of the names must have been read."""
    model = names.model.value
    precision = names.precisions.value[0] or model.precision
    return resolve(question, gpu_type, layout, precision, read, notes=notes_of(model))


def check_all_new(values: Mapping[str, Any], instead: str) -> None:
    """Raise InputError for what spares a prompt's tokens, in a step that works on the tokens it is given."""
    _refuse(SPARING, values, "changes which tokens a step gets, not the step", instead)


def _refuse(names: tuple[str, ...], values: Mapping[str, Any], why: str, instead: str) -> None:
    """Raise InputError where any of the options of these names is given."""
    given = [option for option in OPTIMISATION_OPTIONS if option.name in names and values.get(option.name) is not None]
    if given:
        raise InputError(Fault(why, field=", ".join(option.flags[0] for option in given), allowed=instead))


def layout_of(serving: Serving) -> Layout:
    """Return the layout that is asked for, every size 1 where it is not. Raises InputError where EP does not divide."""
    layout = Layout(**{name: getattr(serving, name) or 1 for name in SIZES})
    if layout.stage_gpus % layout.ep:
        raise InputError(
            Fault(f"{layout.ep} does not divide the {layout.stage_gpus} GPUs of a stage", field="serving.ep")
        )
    return layout
