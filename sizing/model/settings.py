"""The settings of one engine version under given conditions, and the service that a replica runs.

Each setting is given by the first row of the engine profile that holds. A service states no demand.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from sizing.model import architecture
from sizing.model.extras import NOTHING, Extras
from sizing.specs.bands import DrivingMode, LoadRegion, ModelKind, Situation, of_own
from sizing.specs.engine import Engine, EngineSettings, Row, Sparse, When, Windows
from sizing.specs.errors import Fault, InputError, nearest, raise_any
from sizing.specs.frozen import Frozen
from sizing.specs.gpu import Gpu
from sizing.specs.model import Model
from sizing.specs.optimisations import NOTHING_ASKED, Optimisations
from sizing.specs.spec import SpecError
from sizing.specs.units import parse_version
from sizing.specs.workload import GENERATE, Serving, Task


class SettingsConditions(Frozen):
    """The conditions on which an engine's defaults depend: the card, its memory, the layout and the kind of attention.

    `memory_gib` is the total that nvidia-smi reports. `architecture` is the name in the GPU profile. `switched` and
    `states` are as in `specs.engine.When`.
    """

    gpu_name: str
    architecture: str
    memory_gib: float
    tp: int
    pp: int
    attention: Literal["mla", "hybrid", "other"]
    switched: bool = False
    states: bool = False
    sparse: Sparse | None = None
    windows: Windows | None = None
    between_nodes: bool = False


def check_version(engine: Engine, version: str | None) -> str:
    """The version to resolve: `version`, or the newest known one for None.

    `0.19` means 0.19.0. Raises InputError, which lists the known range, for an unknown version.
    """
    if version is None:
        return engine.newest
    try:
        message = None if _within(parse_version(version), engine.oldest, engine.newest) else "is not known"
    except ValueError:
        message = "is not a version"
    if message is not None:
        allowed = f"{engine.oldest} to {engine.newest}"
        raise InputError(f"{engine.name} {version} {message}", field="engine version", allowed=allowed)
    return version.strip()


@cache
def resolve(engine: Engine, version: str, conditions: SettingsConditions) -> EngineSettings:
    """Resolve every setting of `version` under `conditions`; equal arguments share one result.

    Raises InputError for an unknown version, and for a profile with missing or wrong settings, with one fault each.
    """
    chosen = (_first(engine, version, conditions, setting) for setting in EngineSettings.model_fields)
    return _settings(engine, version, tuple(chosen))


@cache
def _settings(engine: Engine, version: str, chosen: tuple[int | None, ...]) -> EngineSettings:
    """The settings from the rows with the numbers `chosen`; equal choices share one result."""
    numbers = dict(zip(EngineSettings.model_fields, chosen, strict=True))
    faults = [_no_row(engine, version, setting) for setting, number in numbers.items() if number is None]
    raise_any(faults)
    chosen_rows = {name: _rows(engine, version, name)[at] for name, at in numbers.items() if at is not None}
    try:
        return EngineSettings.model_validate({name: row.value for name, row in chosen_rows.items()})
    except SpecError as error:
        found = ((f"{each.value!r} is not allowed", ".".join(map(str, each.path))) for each in error.findings)
        raise InputError(
            Fault(f"{engine.name} {version}: {text}", field=f"settings.{at}") for text, at in found
        ) from None


def source_of(engine: Engine, version: str, conditions: SettingsConditions, setting: str) -> Row:
    """The row that decides `setting`, with source, evidence and note. Raises InputError."""
    known = list(EngineSettings.model_fields)
    if setting not in known:
        what, allowed = f"{setting!r} is not an engine setting", ", ".join(known)
        raise InputError(what, field="setting", allowed=allowed, nearest=nearest(setting, known))
    number = _first(engine, version, conditions, setting)
    if number is None:
        raise InputError(_no_row(engine, version, setting))
    return _rows(engine, version, setting)[number]


@cache
def _rows(engine: Engine, version: str, setting: str) -> tuple[Row, ...]:
    """Rows of `setting` that hold for `version`."""
    parts = parse_version(check_version(engine, version))
    return tuple(row for row in engine.settings.get(setting, ()) if _within(parts, row.since, row.until))


def _first(engine: Engine, version: str, conditions: SettingsConditions, setting: str) -> int | None:
    """The number of the first row that holds for `version` and `conditions`."""
    rows = _rows(engine, version, setting)
    return next((number for number, row in enumerate(rows) if _holds(row.when, conditions)), None)


def length_by_default(model: Model, engine: Engine, version: str) -> int:
    """The longest sequence that an engine holds where no length is stated: all positions, or those before LongRoPE."""
    row = next(iter(_rows(engine, version, "unstretched_default")), None)
    return model.unstretched if model.unstretched is not None and row is not None and row.value else model.max_position


def is_within(version: str, since: str, until: str | None) -> bool:
    """Whether `version` lies between `since` and `until` of a profile row. `until` 0.19 covers 0.19.x."""
    return _within(parse_version(version), since, until)


def _within(version: tuple[int, ...], since: str, until: str | None) -> bool:
    """Whether since <= version <= until. `until` covers every version that it is a prefix of; missing parts are 0."""
    first = parse_version(since)
    if _padded(version, len(first)) < first:
        return False
    if until is None:
        return True
    last = parse_version(until)
    return _padded(version, len(last))[: len(last)] <= last


def _padded(version: tuple[int, ...], length: int) -> tuple[int, ...]:
    return version + (0,) * (length - len(version))


def _holds(when: When, conditions: SettingsConditions) -> bool:
    """Whether `conditions` meet every condition that `when` states."""
    gpus = conditions.tp * conditions.pp
    name = conditions.gpu_name.lower()
    return (
        (when.min_memory_gib is None or conditions.memory_gib >= when.min_memory_gib)
        and (when.below_memory_gib is None or conditions.memory_gib < when.below_memory_gib)
        and (when.min_gpus is None or gpus >= when.min_gpus)
        and (when.max_gpus is None or gpus <= when.max_gpus)
        and (when.min_tp is None or conditions.tp >= when.min_tp)
        and (when.min_pp is None or conditions.pp >= when.min_pp)
        and (not when.gpu_contains or any(part.lower() in name for part in when.gpu_contains))
        and not any(part.lower() in name for part in when.gpu_lacks)
        and (not when.architecture or conditions.architecture in when.architecture)
        and when.attention in (None, conditions.attention)
        and when.switched in (None, conditions.switched)
        and when.states in (None, conditions.states)
        and (not when.sparse or conditions.sparse in when.sparse)
        and (not when.windows or conditions.windows in when.windows)
        and when.between_nodes in (None, conditions.between_nodes)
    )


def _no_row(engine: Engine, version: str, setting: str) -> Fault:
    return Fault(f"{engine.name} {version} has no row for this deployment", field=f"settings.{setting}")


Phase = Literal["whole", "prefill", "decode"]
NO_CACHE = "none"  # the cache precision of a model that keeps no KV cache


class Service(Frozen):
    """What a replica runs: the model on an engine, with its flags, extras, formats and lengths. It states no demand.

    `isl` and `osl` are mean lengths in tokens. `phase` is the replica's part of a request: the whole, or in separate pools
    only its prefill or its decode. `mode` is how it is driven: for clients that wait, or offline.
    """

    model: Model
    isl: int
    osl: int
    max_model_len: int
    serving: Serving
    engine: Engine
    engine_version: str
    kv_precision: str
    optimisations: Optimisations = NOTHING_ASKED
    extras: Extras = NOTHING
    phase: Phase = "whole"
    task: Task = GENERATE
    mode: DrivingMode = "served"

    @property
    def cache_precision(self) -> str:
        """The precision of the KV cache as asked; `none` for a model that keeps no cache."""
        return NO_CACHE if self.model.encoder else self.kv_precision

    @property
    def single_result(self) -> bool:
        """Whether a request has one result, and so one latency: a token, or what a model without decoding gives.

        A prefill pool's part of a request has one token too, and the request has more.
        """
        return self.osl == 1 and self.phase == "whole"

    @property
    def output_tokens(self) -> int:
        """Tokens that a request returns: its OSL, or 0 for a pooling task."""
        return 0 if self.model.pooled else self.osl

    def situation(self, gpu: Gpu, load: LoadRegion | None = None) -> Situation:
        """The class to which figures of this service on a GPU type belong; error bands are looked up by it."""
        kind: ModelKind = "moe" if architecture.is_moe(self.model) else "dense"
        own = () if gpu.own_runs is None else of_own(gpu.own_runs)
        return Situation(self.mode, gpu.vendor, self.engine.name, gpu.architecture, kind, load, own=own)
