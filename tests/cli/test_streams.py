"""Standard streams that are closed, full or left, and Ctrl-C: one line at most, never a traceback, and the right code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from places import ROOT
from processes import said

MEASURED = str(ROOT / "tests" / "data" / "measured_sample.csv")
LISTING = ["gpus"]
TICKS = ["simulate", "--ticks", "--requests", "3"]
VALIDATE = ["validate", MEASURED, "--jobs", "1"]
SHORT = [["--help"], ["--version"], LISTING, TICKS]
CLOSED = "llmsize: standard output: cannot be written: it is closed\n"
FULL = "llmsize: standard output: cannot be written: No space left on device\n"


def shell(arguments: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    """Run the command with its streams redirected as a shell does it."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-m", "sizing", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("redirection", "fault"), [(">&-", CLOSED), ("> /dev/full", FULL)])
@pytest.mark.parametrize("arguments", [*SHORT, VALIDATE], ids=lambda found: found[0])
def test_output_that_does_not_arrive_is_a_fault(arguments: list[str], redirection: str, fault: str) -> None:
    found = shell(arguments, redirection)
    assert (found.returncode, said(found.stderr), found.stdout) == (2, fault, "")


@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full"])
def test_a_mistake_that_nobody_hears_keeps_its_code_and_off_stdout(redirection: str) -> None:
    found = shell(["estimate"], redirection)
    assert (found.returncode, found.stdout) == (2, "")


def test_every_stream_may_be_closed() -> None:
    assert shell(LISTING, "<&- >&- 2>&-").returncode == 2


@pytest.mark.parametrize("arguments", SHORT, ids=lambda found: found[0])
def test_a_reader_that_was_never_there_is_met_with_silence(arguments: list[str]) -> None:
    # 141 = 128 + 13, as a shell reports SIGPIPE.
    read, write = os.pipe()
    os.close(read)
    found = subprocess.run(
        [sys.executable, "-m", "sizing", *arguments],
        stdout=write,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (found.returncode, said(found.stderr)) == (141, "")


# Interrupts itself at a given moment, so that no test has to wait for one: the first import of a module, wherever it is.
INTERRUPTING = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["llmsize", *{arguments!r}]
from sizing.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "sizing.cli.main", "sizing.cli.listings", "sizing.formats.text", "yaml"])
def test_an_interrupt_while_loading_ends_quietly(module: str) -> None:
    code = INTERRUPTING.format(module=module, arguments=["gpus", "h100-sxm"])
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert (found.returncode, found.stdout, said(found.stderr)) == (128 + signal.SIGINT, b"", "")


def test_an_interrupt_that_an_import_turns_into_an_error_is_still_one() -> None:
    code = INTERRUPTING.format(module="nothing", arguments=["gpus"]).replace(
        "from sizing.__main__ import main",
        "import sizing.__main__ as entry\n"
        "def run():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        while True: pass\n"
        "    except KeyboardInterrupt:\n"
        "        raise RuntimeError('Error calling __set_name__') from None\n"
        "entry._run = run\n"
        "from sizing.__main__ import main",
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert (found.returncode, said(found.stderr)) == (130, "")
