"""Measure `llmsize sweep`: 10,000 estimates of one GPU type, by what is varied, against the goal of a minute on two cores.

    python tests/benchmarks/sweep.py [--jobs 2] [--llmsize PATH]
    python tests/benchmarks/sweep.py --cluster 1000000    # rows over a Dask cluster that loses a worker, against one process

Seconds of all processes together are told beside those of the clock: on a busy machine only the former can be compared.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
CHAT = ["sweep", str(ROOT / "workloads/traffic/chat.yaml"), "-g", "h100-sxm"]
LARGE = ["sweep", "-m", "deepseek-ai/DeepSeek-V3", "-g", "h200-sxm"]
SWEEPS = {
    "chat: 100 pairs of lengths x 100 rates": [*CHAT, *("--vary", "isl=100..1000:100", "--vary", "osl=50..500:50", "--vary", "rps=1..100:1")],
    "chat: 100 rates x 100 pairs of lengths": [*CHAT, *("--vary", "rps=1..100:1", "--vary", "isl=100..1000:100", "--vary", "osl=50..500:50")],
    "chat: 10,000 pairs of lengths": [*CHAT, *("--vary", "isl=100..1090:10", "--vary", "osl=50..545:5")],
    "chat: 100 limits x 100 rates": [*CHAT, *("--vary", "ttft=" + ",".join(f"{200 + 10 * n}ms" for n in range(100)), "--vary", "rps=1..100:1")],
    "DeepSeek-V3: 100 pairs of lengths x 100 rates": [*LARGE, *("--vary", "isl=100..1000:100", "--vary", "osl=50..500:50", "--vary", "rps=1..100:1")],
}  # fmt: skip
ROWS = 10_000


def on_cluster(llmsize: Path, rows: int, workers: int) -> None:
    """Compare the rows of a local cluster, a worker of which is killed on the way, with those of one process."""
    from distributed import LocalCluster

    words = [str(llmsize), *CHAT, "--vary", "isl=100..1000:100", "--vary", "osl=50..500:50"]
    words += ["--vary", f"rps=1..{rows // 100}:1", "--format", "csv"]
    started = time.perf_counter()
    alone = subprocess.run([*words, "--jobs", "1"], capture_output=True, check=True).stdout
    one_s = time.perf_counter() - started
    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        victim = next(iter(cluster.workers.values())).pid
        threading.Timer(one_s / workers / 2, lambda: os.kill(victim, signal.SIGKILL)).start()
        started = time.perf_counter()
        spread = subprocess.run([*words, "--dask", cluster.scheduler_address], capture_output=True, check=True).stdout
        all_s = time.perf_counter() - started
    assert spread.count(b"\n") == rows + 1 and spread == alone, "the cluster's rows differ"
    print(
        f"{rows:,} rows: {one_s:.0f} s in one process, {all_s:.0f} s on {workers} workers, one killed; the same bytes"
    )


def main() -> None:
    """Print a row for each sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--llmsize", type=Path, default=Path(sys.executable).with_name("llmsize"))
    parser.add_argument("--cluster", type=int, metavar="ROWS", help="multiple of 100")
    arguments = parser.parse_args()
    if arguments.cluster:
        on_cluster(arguments.llmsize, arguments.cluster, arguments.jobs)
        return
    table = Table(
        f"sweep of {ROWS:,} rows, {arguments.jobs} processes", "s by the clock", "s of all processes", "ms a row"
    )
    for name, words in SWEEPS.items():
        command = [str(arguments.llmsize), *words, "--jobs", str(arguments.jobs), "--format", "csv"]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        took = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert text.count("\n") == ROWS + 1, name
        table.add_row(name, f"{took:.1f}", f"{busy:.1f}", f"{1000 * busy / ROWS:.2f}")
    console = Console()
    console.print(table)
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    console.print(f"largest process {peak_mb:.0f} MB; load of the machine {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
