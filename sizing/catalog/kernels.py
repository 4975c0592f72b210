"""Tables of measured kernels, one file an architecture, read where a model needs them."""

from __future__ import annotations

import csv
from functools import cache

from sizing.catalog.files import data_folder, read_text
from sizing.catalog.shelf import only
from sizing.specs.experts import ExpertKernel, ExpertKnots, MeasuredKernels

_TEXTS = ("gpu", "engine", "version", "precision", "kernel", "ranks", "rule")
_PER_THOUSAND = 1e-3


@cache
def expert_kernels(architecture: str) -> tuple[ExpertKernel, ...]:
    """The measured kernels of experts on GPUs of an architecture; none where nothing was measured."""
    path = data_folder("hardware_profiles") / "kernels" / f"{architecture}.csv"
    if not path.is_file():
        return ()
    about = only(MeasuredKernels).experts
    return tuple(_kernel(line, about) for line in csv.DictReader(read_text(path).splitlines()))


def _kernel(line: dict[str, str], about: ExpertKnots) -> ExpertKernel:
    numbers = {
        name: float(line[name])
        for name in ExpertKernel.__dataclass_fields__
        if name not in (*_TEXTS, "gated", "routes", "points", "grid", "source", "date", "operation")
    }
    return ExpertKernel(
        **{name: line[name] for name in _TEXTS},  # type: ignore[arg-type]
        **numbers,  # type: ignore[arg-type]
        gated=line["gated"] == "yes",
        routes=line["routes"] == "yes",
        points=int(line["points"]),
        source=about.source,
        date=about.date,
        grid=tuple(_PER_THOUSAND * float(value) for value in line["grid"].split()),
    )
