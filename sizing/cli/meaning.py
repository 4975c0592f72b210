"""Options that are given though the load that was asked for leaves them nothing to act on: faults, never silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sizing.cli.driving import Driving
from sizing.cli.reading import Reader
from sizing.question.demand import OF_YEAR
from sizing.question.fields import Field
from sizing.specs.workload import Tokens, Workload

OF_DYNAMIC = ("batch_size", "batch_window")
OF_USERS = ("requests_per_user", "active_hours", "peak_to_mean")
OF_MEANS = (*OF_YEAR, "mean_requests_per_s")
LENGTHS = {"isl": "prompt", "osl": "output"}


def check(
    options: tuple[Field, ...], values: Mapping[str, Any], asked: Workload, file: Workload | None, driven: Driving
) -> None:
    """Raise InputError with a fault for each option without an effect.

    `file` is the workload before options were laid over it: what it states itself may stand though nothing comes of it.
    """
    read = Reader(values, [])
    if "dynamic" not in driven.policies:
        read.idle(OF_DYNAMIC, options, "without --policy dynamic")
    demand, traced, at_once = asked.demand, values["trace"] is not None, driven.arriving.kind is None
    driven_by_demand = demand is not None and not traced and not at_once
    closed = driven_by_demand and demand is not None and demand.concurrency is not None
    kind = demand.kind if driven_by_demand and demand is not None else None
    if kind in OF_MEANS:  # whose peak comes from the mean as that of users does
        read.idle(("requests_per_user",), options, "where no daily active users bring the load", "with --dau")
    elif kind != "daily_active_users":
        read.idle(OF_USERS, options, "where no daily active users bring the load", "with --dau")
    if not traced and not at_once and (demand is None or closed):
        read.idle(("arrivals",), options, "without a rate", "with --rps or --dau; at-once")
    if closed:
        read.idle(("routing",), options, "in a closed loop, whose clients stay with their replica")
    elif driven.replicas == 1:
        read.idle(("routing",), options, "with one replica", "with --replicas")
    if not traced:
        _check_lengths(options, read, asked.tokens, file, driven)
    read.check()


def _check_lengths(
    options: tuple[Field, ...], read: Reader, tokens: Tokens, file: Workload | None, driven: Driving
) -> None:
    """Note what spreads or cuts lengths that are all equal, and what spreads them too far."""
    stds = {"isl": driven.isl_std or tokens.isl_std, "osl": driven.osl_std or tokens.osl_std}
    if driven.length_ratio is None and not any(stds.values()):
        read.idle(("length_shape",), options, "where all lengths are equal", "with --isl-std or --osl-std")
    for name, noun in LENGTHS.items():
        read.spread(f"--{name}-std", getattr(driven, f"{name}_std"), getattr(tokens, name))
        cut = stds[name] is not None and driven.length_ratio is None
        replaced = file is not None and getattr(file.tokens, f"{name}_max") is not None  # which --isl may make wrong
        if not cut and not replaced:
            why = f"where no {noun} is longer than the mean"
            read.idle((f"{name}_max",), options, why, f"with --{name}-std; --max-model-len holds longer sequences")
