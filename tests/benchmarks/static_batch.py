"""Errors of TTFT and ITL on measured static batches, by GPU and precision, with the constants of the profiles alone.

    python tests/benchmarks/static_batch.py static_batch.csv [--engine tensorrt-llm] [--by gpu,weight_precision]

The same comparison as `llmsize validate`, for rows of one engine; exits with 1 where a median is off by a factor of 1.5.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from rich.console import Console
from rich.table import Table

from sizing.catalog.measured import load_measured
from sizing.catalog.profiles import load_engine
from sizing.cli.workers import cores, ordered
from sizing.evidence.errors import compare, groups
from sizing.evidence.predict import predict_rows
from sizing.specs.errors import InputError

WRONG = 0.5  # a median error that is no error of accuracy but a bug


def main() -> int:
    """Print median absolute error, bias and 90th percentile of each group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="CSV of measured rows")
    parser.add_argument("--engine", default="tensorrt-llm", help="rows of this engine, by any of its names")
    parser.add_argument("--by", default="gpu,weight_precision", help="columns to group by")
    options = parser.parse_args()
    by = options.by.split(",")

    def is_of(name: str) -> bool:
        try:
            return load_engine(name)[0].spec.name == load_engine(options.engine)[0].spec.name
        except InputError:
            return False

    rows = [row for file in options.files for row in load_measured(file) if row.mode == "static_batch"]
    results = predict_rows([row for row in rows if is_of(row.engine)], each=partial(ordered, jobs=cores()))
    table = Table(*by, "metric", "rows", "median %", "bias %", "90th %")
    worst = 0.0
    for group in groups(compare(results, by), by):
        for metric in ("ttft_ms", "itl_ms"):
            found = group.metrics.get(metric)
            if found is not None:
                figures = (f"{100 * value:.0f}" for value in (found.median_ape, found.bias, found.p90_ape))
                table.add_row(*(group.by[name] for name in by), metric, str(found.n), *figures)
                worst = max(worst, found.median_ape)
    Console(width=120).print(table)
    return int(worst > WRONG)


if __name__ == "__main__":
    sys.exit(main())
