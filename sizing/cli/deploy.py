"""From options to one resolved deployment, for the commands that look at a single layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sizing import request as requests
from sizing.architecture import Layout
from sizing.catalog import models, workloads
from sizing.cli.options import ONE_LAYOUT_OPTIONS, comma_separated, overrides
from sizing.cli.resolve import data, engine_of, gpu_options, precisions_of
from sizing.deployment import Resolved, resolve
from sizing.errors import Fault, InputError
from sizing.specs.workload import Serving

# `override` validates a whole workload; these commands have no tokens of their own.
PLACEHOLDER_TOKENS = {"isl": 1, "osl": 1}


def deployment(values: Mapping[str, Any]) -> Resolved:
    """Return the deployment that the options describe. Raises InputError unless they name one model and one GPU type."""
    given, names = overrides(ONE_LAYOUT_OPTIONS, values)
    missing = [
        Fault("is needed", field=option, allowed=allowed)
        for key, option, allowed in (
            ("model", "--model", "a name (llmsize models), a config.json or its folder"),
            ("gpu", "--gpu", "one GPU type (llmsize gpus) or a profile's path"),
        )
        if not given.get(key)
    ]
    if missing:
        raise InputError(missing)
    if len(given["gpu"]) > 1 or "all" in given["gpu"]:
        raise InputError(Fault("looks at one GPU type at a time", field="--gpu", allowed="one name"))
    workload = workloads.override(None, {**given, "tokens": PLACEHOLDER_TOKENS}, names)
    precisions = precisions_of(values)
    if len(precisions) > 1:
        raise InputError(Fault("looks at one precision at a time", field="--precision", allowed="one name"))
    model = models.load_model(workload.model)
    options, _ = gpu_options(comma_separated(values["gpu"]), None)
    engine, version = engine_of(workload.serving.engine)
    read = data()
    kv = workload.kv_precision if workload.kv_precision != "auto" else model.kv_precision
    request = requests.without_demand(
        workload.model_copy(update={"kv_precision": kv}), model.spec, engine, version, read.defaults
    )
    serving = workload.serving
    return resolve(request, options[0], layout_of(serving), precisions[0] or model.precision, read)


def layout_of(serving: Serving) -> Layout:
    """Return the layout that is asked for, every size 1 where it is not. Raises InputError where --ep does not divide."""
    layout = Layout(serving.tp or 1, serving.pp or 1, serving.dp or 1, serving.ep or 1)
    if (layout.tp * layout.dp) % layout.ep:
        raise InputError(
            Fault(f"{layout.ep} does not divide the {layout.tp * layout.dp} GPUs of a stage", field="--ep")
        )
    return layout
