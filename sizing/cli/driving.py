"""How a simulation in real time is driven: policies, arrivals, lengths, chance; what says nothing of the deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from sizing.cli.reading import MOST, Reader, is_given
from sizing.engine.requests import Arrivals
from sizing.engine.rules import POLICIES
from sizing.engine.run import ROUTINGS, Routing
from sizing.question.fields import Field
from sizing.specs.errors import Fault
from sizing.specs.units import parse_duration_s

OWN = "engine"  # the policy that the engine version itself schedules by
WINDOW_S = 0.1  # that a dynamic batch waits at most
MOST_REPLICAS = 4096
SEED = 0
ARRIVALS = ("even", "poisson", "gamma:SHAPE", "at-once")
LEAST_BURSTINESS, MOST_BURSTINESS = 0.01, 1000.0  # gamma shapes: all but a few at once, and all but evenly spaced
Shape = Literal["lognormal", "normal"]
SHAPES: tuple[Shape, ...] = ("lognormal", "normal")
TICKS_ONLY = ("prefill", "prefill_chunks", "rate", "osl_mean")
OF_LOADS = ("rps", "concurrency", "dau", "arrivals")
OF_LENGTHS = ("isl", "osl", "isl_max", "osl_max", "isl_std", "osl_std", "length_shape", "length_ratio")


class Arriving(NamedTuple):
    """How requests arrive where a rate is stated; `kind` is None for all at once."""

    kind: Arrivals | None
    burstiness: float = 1.0


class Driving(NamedTuple):
    """Everything that drives a run; None where the workload or the engine decides."""

    policies: tuple[str, ...]
    stated_replicas: int | None
    slots: int | None
    batch_size: int | None
    batch_window_s: float
    arriving: Arriving
    requests: int | None
    isl_std: float | None
    osl_std: float | None
    length_shape: Shape
    length_ratio: float | None
    routing: Routing
    seed: int
    limit_s: float | None

    @property
    def replicas(self) -> int:
        """Engine instances, one where nothing is said."""
        return self.stated_replicas or 1


def driving(options: tuple[Field, ...], values: Mapping[str, Any]) -> Driving:
    """Read the options. Raises InputError with a fault for each that is wrong, contradicts another or counts ticks."""
    flags = {option.name: option.flags[0] for option in options}
    read = Reader(values, _form_faults(flags, values))
    window = read.parsed("batch_window", "--batch-window", parse_duration_s)
    shape = read.chosen(values["length_shape"] or SHAPES[0], SHAPES, "--length-shape", "shape of lengths")
    routing = read.chosen(values["routing"] or ROUTINGS[0], ROUTINGS, "--routing", "routing")
    found = Driving(
        policies=read.policies((OWN, *POLICIES), OWN),
        stated_replicas=read.whole("replicas", "--replicas", most=MOST_REPLICAS),
        slots=read.whole("slots", "--slots"),
        batch_size=read.whole("batch_size", "--batch-size"),
        batch_window_s=WINDOW_S if window is None else window,
        arriving=_arriving(read),
        requests=read.whole("requests", "--requests"),
        isl_std=read.number("isl_std", "--isl-std", most=MOST),
        osl_std=read.number("osl_std", "--osl-std", most=MOST),
        length_shape=cast(Shape, shape),
        length_ratio=read.number("length_ratio", "--length-ratio", most=1.0),
        routing=cast(Routing, routing),
        seed=read.seed(SEED),
        limit_s=read.parsed("limit", "--limit", _seconds),
    )
    read.check()
    return found


def _form_faults(flags: Mapping[str, str], values: Mapping[str, Any]) -> list[Fault]:
    """Find options that belong to ticks, contradict each other, or are written as ticks take them."""
    given = {name for name in flags if is_given(values[name])}
    faults = [Fault("counts ticks", field=flags[name], allowed="with --ticks") for name in TICKS_ONLY if name in given]
    if "trace" in given:
        faults += [
            Fault("contradicts --trace, which has its own", field=flags[name])
            for name in (*OF_LOADS, *OF_LENGTHS)
            if name in given
        ]
    if values["itl"] is not None and is_number(values["itl"]):
        faults.append(
            Fault(
                f"{values['itl']!r} is a latency limit without its unit",
                field="--itl",
                allowed="30ms, p99:50ms; ticks of a decode step with --ticks",
            )
        )
    if "length_ratio" in given and given & {"isl_std", "osl_std", "length_shape"}:
        faults.append(Fault("contradicts --isl-std, --osl-std and --length-shape", field="--length-ratio"))
    if "arrivals" in given and is_at_once(values["arrivals"]):
        faults += [
            Fault("contradicts --arrivals at-once, which has no rate", field=flags[name])
            for name in ("rps", "dau")
            if name in given
        ]
    if "concurrency" in given and "arrivals" in given:
        faults.append(Fault("contradicts --concurrency, where an end brings the next", field="--arrivals"))
    return faults


def is_at_once(text: str) -> bool:
    """Tell whether arrivals are to come all at the start."""
    return text.strip().lower() == "at-once"


def is_number(text: str) -> bool:
    """Tell whether a text is a number without a unit."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _seconds(text: str) -> float:
    """Read a limit of the run: a duration, or a number of seconds."""
    return parse_duration_s(f"{text}s" if is_number(text) else text)


def _arriving(read: Reader) -> Arriving:
    text = read.values["arrivals"]
    if text is None:
        return Arriving("poisson")
    text = text.strip().lower()
    kind, _, shape = text.partition(":")
    if kind == "gamma" and is_number(shape):
        if LEAST_BURSTINESS <= float(shape) <= MOST_BURSTINESS:
            return Arriving("gamma", float(shape))
        allowed = f"gamma:SHAPE from {LEAST_BURSTINESS:g} to {MOST_BURSTINESS:,.0f}"
        read.fault(f"{text!r} is out of range", "--arrivals", allowed)
        return Arriving("gamma")
    if text in ("even", "poisson"):
        return Arriving(cast(Literal["even", "poisson"], text))
    if not is_at_once(text):
        read.chosen(text, ARRIVALS, "--arrivals", "kind of arrivals")
    return Arriving(None)
