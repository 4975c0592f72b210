"""Engine profiles as they stand in the catalogue, and deployments on cards for which they are resolved."""

from __future__ import annotations

import itertools
from typing import Literal

from places import ROOT

from sizing.catalog.profiles import load_engine
from sizing.model.settings import SettingsConditions, check_version
from sizing.specs.engine import Engine, Sparse
from sizing.specs.errors import InputError
from sizing.specs.units import parse_version

FOLDER = ROOT / "hardware_profiles" / "engines"

FILES = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}

ENGINES = {stem: load_engine(str(path))[0].spec for stem, path in FILES.items()}

VLLM, SGLANG, TENSORRT_LLM = ENGINES["vllm"], ENGINES["sglang"], ENGINES["tensorrt-llm"]


# Totals that nvidia-smi reports, in MiB.
CARDS = {
    "T4 16GB": ("turing", 15360),
    "RTX 4090": ("ada", 24564),
    "L40S 48GB": ("ada", 46068),
    "A100 SXM 40GB": ("ampere", 40960),
    "A100 SXM 80GB": ("ampere", 81920),
    "H100 SXM 80GB": ("hopper", 81559),
    "H200 SXM 141GB": ("hopper", 143771),
    "B200 SXM 180GB": ("blackwell", 183359),
    "MI300X 192GB": ("cdna3", 196608),
    "MI355X 288GB": ("cdna4", 294912),
    "RTX PRO 6000 Blackwell Server": ("blackwell-rtx", 97887),
}

ON_PCIE = ("T4 16GB", "RTX 4090", "L40S 48GB", "RTX PRO 6000 Blackwell Server")


def on(
    gpu: str,
    tp: int = 1,
    pp: int = 1,
    attention: Literal["mla", "hybrid", "other"] = "other",
    sparse: Sparse | None = None,
) -> SettingsConditions:
    architecture, memory_mib = CARDS[gpu]
    switched, states = gpu not in ON_PCIE, attention == "hybrid"
    return SettingsConditions(gpu, architecture, memory_mib / 1024, tp, pp, attention, switched, states, sparse)


def boundaries(engine: Engine) -> list[str]:
    """Every version that a row names, and its neighbours above, as far as they lie in the known range."""
    named = {engine.oldest, engine.newest}
    for row in itertools.chain.from_iterable(engine.settings.values()):
        for text in (row.since, row.until):
            if text is not None:
                parts = parse_version(text)
                named |= {text, ".".join(map(str, (*parts[:-1], parts[-1] + 1))), f"{text}.99"}
    return sorted(version for version in named if _known(engine, version))


def _known(engine: Engine, version: str) -> bool:
    try:
        check_version(engine, version)
    except InputError:
        return False
    return True
