"""The page on accuracy, written from the shipped data files: published runs against predictions, ranges, corrections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from sizing.calibration.coverage import covered
from sizing.catalog import profiles, shelf
from sizing.catalog.runs import SimilarRuns, published
from sizing.formats.words import percent
from sizing.specs.bands import TIMES, Bands, Corrections, PublishedRuns
from sizing.specs.calibration import Calibration
from sizing.specs.engine_time import HIGH_END
from sizing.specs.gpu import AssumedEfficiencies, CollectiveRow

NAMES = {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E", "throughput": "rate"}
MEMORY = {"weights": "weights", "kv_cache": "KV cache"}
KINDS = {"dense": "dense", "moe": "experts"}
MODES = {"served": "served online", "batch": "static batches", "offline": "offline"}
SHORT = (("vllm", "dense"), ("vllm", "moe"), ("tensorrt-llm", "dense"), ("sglang", "moe"))
OF_RUNS = "published runs"  # how the source of a constant begins that no kernel's own time gave
MOST_SETS = 8  # of runs left out that are named
LEAST_RUNS = 5  # fewest runs for a meaningful median


def accuracy_page() -> str:
    """The page in Markdown, which is accuracy.md with its figures and tables. Raises InputError for a faulty data file."""
    file, rules = shelf.only(PublishedRuns), shelf.only(Calibration).not_fitted
    doubtful = sorted((rule for rule in rules if rule.is_doubt), key=lambda rule: -rule.runs)
    left_out = sum(rule.runs for rule in doubtful)
    largest = ([str(rule.runs), rule.source or "several sources", rule.why] for rule in doubtful[:MOST_SETS])
    page = Path(__file__).with_name("accuracy.md").read_text(encoding="utf-8")
    return page.format(
        runs=len(published().groups),
        groups=len(file.groups),
        least=LEAST_RUNS,
        errors=table(("runs", "engine", "vendor", "model", "n", "groups", *NAMES.values()), _errors()),
        formats="; ".join(_of_runs()),
        sets=len(doubtful),
        left_out_runs=left_out,
        unmeasured=sum(rule.runs for rule in rules) - left_out,
        left_out=table(("runs", "of", "why"), largest),
        corrections=table(("runs", "engine", "generation", "model", "decode", "prefill", "groups"), _corrections()),
        ranges=table(("runs", "vendor", "model", "figure", "from", "to", "n"), _ranges()),
        **_covered(file),
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _errors() -> Iterator[list[str]]:
    found = published().by(("mode", "engine", "vendor", "kind"))
    for key in sorted(found, key=lambda key: (list(MODES).index(key[0]), key)):
        (mode, engine, vendor, kind), runs = key, found[key]
        figures = [_error(runs, name) for name in NAMES]
        yield [MODES[mode], title(engine), vendor, KINDS[kind], str(len(runs.times)), str(runs.groups), *figures]


def _error(runs: SimilarRuns, name: str) -> str:
    ratios = runs.times[:, TIMES.index(name)]
    off = np.abs(ratios[~np.isnan(ratios)] - 1) * 100
    return f"{np.median(off):.0f} / {np.percentile(off, 90):.0f}" if off.size >= LEAST_RUNS else "–"


def _of_runs() -> Iterator[str]:
    """The architectures with efficiencies that were fitted to published runs, each with their formats."""
    for one in shelf.only(AssumedEfficiencies).architectures:
        kernels = (row for row in one.efficiency if not isinstance(row, CollectiveRow))
        formats = dict.fromkeys(row.precision for row in kernels if row.source.startswith(OF_RUNS))
        if formats:
            yield f"{one.vendor} {one.architecture} ({', '.join(map(str, formats))})"


def _corrections() -> Iterator[list[str]]:
    for one in shelf.only(Corrections).corrections:
        if one.engine is not None and one.architecture is not None and one.kind is not None:
            factors = [f"{one.decode:.2f}", f"{one.prefill:.2f}", str(one.groups)]
            yield [MODES[one.mode or ""], title(one.engine), one.architecture, KINDS[one.kind], *factors]


def _covered(file: PublishedRuns) -> dict[str, str]:
    """The tails of the ranges of answers, and the shares of runs of groups left out that these hold."""
    shares = (f"{NAMES[name]} {percent(share)}" for name, (share,) in covered(file, (file.tail,)).items())
    return {"tail": percent(file.tail), "rate_tail": percent(1 - HIGH_END), "covered": ", ".join(shares)}


def _ranges() -> Iterator[list[str]]:
    for one in shelf.only(Bands).bands:
        narrowed = (one.engine, one.architecture, one.load)
        of_memory = one.metric in MEMORY and one.vendor is None
        if not any(narrowed) and (of_memory or (one.kind is not None and one.vendor is not None)):
            where = ("engine logs", "all", "all")
            if one.mode is not None:
                where = (MODES[one.mode], one.vendor or "", KINDS[one.kind or "dense"])
            name = MEMORY.get(one.metric) or NAMES[one.metric]
            yield [*map(str, where), name, f"{one.low:.2f}", f"{one.high:.2f}", str(one.n)]


def title(engine: str) -> str:
    """The name of an engine as people write it."""
    return profiles.load_engine(engine)[0].spec.title


def short_table() -> str:
    """A table of five rows with errors of runs served online: by engine and kind on NVIDIA GPUs, and all runs on AMD GPUs."""
    by_kind, by_vendor = (published().by(("mode", "vendor", *names)) for names in (("engine", "kind"), ()))
    rows = [(f"{title(engine)}, {KINDS[kind]}", by_kind["served", "NVIDIA", engine, kind]) for engine, kind in SHORT]
    rows.append(("AMD GPUs, all engines", by_vendor["served", "AMD"]))
    names = ("ttft", "itl", "e2e")
    heads = ("served online", *(NAMES[name] for name in names), "runs", "groups")
    cells = [
        [what, *(_error(runs, name) for name in names), str(len(runs.times)), str(runs.groups)] for what, runs in rows
    ]
    return table(heads, cells)
