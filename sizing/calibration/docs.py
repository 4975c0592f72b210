"""The page on accuracy, written from the shipped data files: published runs against predictions, ranges, corrections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from sizing.calibration.coverage import covered
from sizing.catalog import profiles, shelf
from sizing.formats.words import percent
from sizing.specs.bands import TIMES, Bands, Corrections, PublishedRuns, SimilarRuns
from sizing.specs.calibration import Calibration
from sizing.specs.engine_time import HIGH_END
from sizing.specs.gpu import AssumedEfficiencies, CollectiveRow
from sizing.specs.workload import LATENCIES

NAMES = {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E", "throughput": "rate"}
MEMORY = {"weights": "weights", "kv_cache": "KV cache"}
KINDS = {"dense": "dense", "moe": "experts"}
MODES = {"served": "served online", "batch": "static batches", "offline": "offline"}
SHORT = (("vllm", "dense"), ("vllm", "moe"), ("tensorrt-llm", "dense"), ("sglang", "moe"))
OF_RUNS = "published runs"  # how the source of a constant begins that no kernel's own time gave
MOST_SETS = 8  # of runs left out that are named
LEAST_RUNS = 5  # fewest runs for a meaningful median

INTRODUCTION = """\
# How right it is

`llmsize` compares its predictions with published benchmark runs. This page is written from the data files that come with the
program (`python -m sizing.calibration --docs > docs/accuracy.md`); nothing in it is typed by hand.

A run counts as *like* a question where engine, GPU generation, kind of model (dense or experts) and load are alike. Runs of one
source, model and GPU are one group, since they share their mistakes. Each prediction here was corrected by **other** groups
only, so the errors are those of a question that nobody has measured.
"""
ERRORS = """\
## Errors by kind of run

Median and 90th percentile of how far the measured figure is from the prediction, in %, of {runs:,} runs of {groups} groups. TTFT is the time to the first token, ITL the time
between tokens, E2E the time of a whole request, rate the time that a request takes of a full deployment. A dash: fewer than
{least} runs state it.
"""
IN_SAMPLE = """\
Host times of engines, a few constants each, were fitted to runs of this table. So were products and experts of which no kernel was
measured: {formats}. The errors of these are lower here than for a new model.
"""
LEFT_OUT = """\
## Runs left out of the fits

{sets} sets of published runs, {runs:,} runs, were left out of every fit and of the ranges as doubtful; of some of them only single figures. Each set
stands with its reason under `not_fitted` in `hardware_profiles/_calibration.yaml`, and `llmsize validate` still predicts and
shows these runs, with the reason. Another {unmeasured:,} runs, on GPUs whose kernels nobody measured, do count in errors, ranges and corrections: only the fits of
host times leave them out. The largest sets:
"""
CORRECTIONS = """\
## Corrections

Where runs of a kind are off to one side, step times are multiplied by the median of at least three groups, and by nothing where
that does not help groups left out. A factor above 1 says that the model alone is too fast.
"""
RANGES = """\
## Likely ranges

The range beside a prediction holds 8 of 10 published runs like it, of groups left out when it was made. The range of an answer
comes from the runs of its sure count, at the load that is shown. It leaves out {tail} of them on each side of a latency, and {rate_tail} on each
side of the rate, as the sure count does. Of runs of groups left out it holds {covered}.

Where no such runs are known, and for offline work without a demand, the range is that of a class. This is measured over
predicted, of the widest class of each kind:
"""
LIMITS = """\
## What it is not for

- GPUs without published runs of their kind are predicted all the same, and the answer says that no error is known. Measure one
  replica before you buy many.
- Networks between nodes, routers and clients are not in the times, beyond what a layout sends itself.
- The quality of answers is not predicted, neither of a quantised model nor of a draft.
- An engine version newer than the newest profile is taken to behave like that one.

## Check it yourself

`llmsize import` turns result files of benchmark tools into rows, and `llmsize validate` predicts each of them:

```bash
llmsize validate tests/data/measured_sample.csv --by engine,gpu,kind
```
"""


def accuracy_page() -> str:
    """The page in Markdown. Raises InputError for a faulty data file."""
    published = shelf.only(PublishedRuns)
    runs = sum(len(one.times) for one in published.by(()).values())
    errors = ERRORS.format(runs=runs, groups=len(published.groups), least=LEAST_RUNS)
    parts = [
        INTRODUCTION,
        errors,
        table(("runs", "engine", "vendor", "model", "n", "groups", *NAMES.values()), _errors(published)),
        IN_SAMPLE.format(formats="; ".join(_of_runs())),
        *_left_out(),
        CORRECTIONS,
        table(("runs", "engine", "generation", "model", "decode", "prefill", "groups"), _corrections()),
        RANGES.format(**_covered(published)),
        table(("runs", "vendor", "model", "figure", "from", "to", "n"), _ranges()),
        LIMITS,
    ]
    return "\n".join(parts)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _errors(published: PublishedRuns) -> Iterator[list[str]]:
    found = published.by(("mode", "engine", "vendor", "kind"))
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


def _left_out() -> Iterator[str]:
    """Yield how many runs the fits leave out as doubtful, and the reasons of the largest sets."""
    rules = shelf.only(Calibration).not_fitted
    found = sorted((rule for rule in rules if rule.is_doubt), key=lambda rule: -rule.runs)
    runs = sum(rule.runs for rule in found)
    yield LEFT_OUT.format(sets=len(found), runs=runs, unmeasured=sum(rule.runs for rule in rules) - runs)
    yield table(
        ("runs", "of", "why"),
        ([str(rule.runs), rule.source or "several sources", rule.why] for rule in found[:MOST_SETS]),
    )


def _corrections() -> Iterator[list[str]]:
    for one in shelf.only(Corrections).corrections:
        if one.engine is not None and one.architecture is not None and one.kind is not None:
            factors = [f"{one.decode:.2f}", f"{one.prefill:.2f}", str(one.groups)]
            yield [MODES[one.mode or ""], title(one.engine), one.architecture, KINDS[one.kind], *factors]


def _covered(published: PublishedRuns) -> dict[str, str]:
    """The tails of the ranges of answers, and the shares of runs of groups left out that these hold."""
    rate_tail = 1 - HIGH_END
    found = covered(published, (published.tail, rate_tail))
    shares = [f"{NAMES[name]} {percent(found[name][name not in LATENCIES])}" for name in found]
    return {"tail": percent(published.tail), "rate_tail": percent(rate_tail), "covered": ", ".join(shares)}


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
    published = shelf.only(PublishedRuns)
    by_kind, by_vendor = published.by(("mode", "vendor", "engine", "kind")), published.by(("mode", "vendor"))
    rows = [(f"{title(engine)}, {KINDS[kind]}", by_kind["served", "NVIDIA", engine, kind]) for engine, kind in SHORT]
    rows.append(("AMD GPUs, all engines", by_vendor["served", "AMD"]))
    names = ("ttft", "itl", "e2e")
    heads = ("served online", *(NAMES[name] for name in names), "runs", "groups")
    cells = [
        [what, *(_error(runs, name) for name in names), str(len(runs.times)), str(runs.groups)] for what, runs in rows
    ]
    return table(heads, cells)
