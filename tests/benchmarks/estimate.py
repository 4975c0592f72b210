"""Measure `llmsize estimate`: the whole process against bare imports, a wide comparison, and the closed form alone.

    python tests/benchmarks/estimate.py [--runs 15] [--llmsize PATH]

Commands take turns with bare imports, so a ratio compares like with like on a busy machine. The imports are the yardstick of
all versions: no command loads pydantic any more, which is nearly a fifth of it.
Give `--llmsize` the command of an installed copy (bytecode compiled); the one beside this Python is the default.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from builders import ask, option, real_model

from sizing.replica import batching, replica
from sizing.replica.timing import timed

CHAT = Path(__file__).resolve().parents[2] / "workloads/traffic/chat.yaml"
IMPORTS = "import typer, rich.console, yaml, numpy, pydantic"
COMMANDS = {
    "--help": ["--help"],
    "estimate, one GPU type, --no-verify": ["estimate", str(CHAT), "--gpu", "h100-sxm", "--no-verify"],
    "estimate, one GPU type": ["estimate", str(CHAT), "--gpu", "h100-sxm"],
    "estimate, all GPUs, all precisions": ["estimate", str(CHAT), "--gpu", "all", "--precision", "all", "--no-verify"],
}
LAYOUT_POINTS = 10_000  # loads tried on each layout at once


def seconds(command: list[str]) -> float:
    """Wall time of a command."""
    # Without bytecode every start would compile the package again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    quiet = subprocess.DEVNULL  # stderr too: on a busy machine a command tells that it works
    subprocess.run(command, stdout=quiet, stderr=quiet, env=environment, check=True)
    return time.perf_counter() - started


def startup_table(llmsize: Path, runs: int) -> Table:
    """Median seconds of each command, and its ratio to the imports run just before it."""
    python = str(llmsize.with_name("python"))
    table = Table("command", "seconds", "x imports")
    for name, arguments in COMMANDS.items():
        pairs = [(seconds([python, "-c", IMPORTS]), seconds([str(llmsize), *arguments])) for _ in range(runs + 1)][1:]
        table.add_row(name, f"{median(b for _, b in pairs):.3f}", f"{median(b / a for a, b in pairs):.2f}")
    return table


def closed_form_line() -> str:
    """Operating points (layout x load) a second of one core, tables of step times included."""
    request = ask(real_model("llama-3.1-70b"), isl=1000, osl=500)
    options = replica.candidates(request.service, option("h100-sxm"), "fp8")
    fitting = [one for one in options if isinstance(one, replica.Replica)]
    started = time.process_time()
    points = 0
    for candidate in fitting:
        load = timed(candidate)
        decoding = np.geomspace(1e-3, 1.0, LAYOUT_POINTS) * load.most_decoding
        points += batching.open_loop(load.curves, load.batching, decoding).requests_per_s.size
    rate = points / (time.process_time() - started)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"closed form: {rate:,.0f} operating points/s over {len(fitting)} layouts, peak memory {peak_mb:.0f} MB"


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--llmsize", type=Path, default=Path(sys.executable).with_name("llmsize"))
    arguments = parser.parse_args()
    console = Console()
    console.print(closed_form_line())
    console.print(startup_table(arguments.llmsize, arguments.runs))


if __name__ == "__main__":
    main()
