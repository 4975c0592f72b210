"""How the refit ends: at once where it is interrupted, and with one line for each fault."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from sizing.calibration.command import INTERRUPTED, in_processes, run
from sizing.specs.errors import InputError


def test_a_command_returns_the_code_of_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    def ends(with_: BaseException | None) -> int:
        def main() -> None:
            if with_ is not None:
                raise with_

        return run(main)

    assert (ends(None), ends(KeyboardInterrupt()), ends(InputError("is wrong", field="rows"))) == (0, INTERRUPTED, 2)
    assert capsys.readouterr().err == "sizing.calibration: rows: is wrong\n"


def test_an_interrupt_ends_the_processes_at_once() -> None:
    """Ten tasks of a minute: the command says that it began, is interrupted, and is gone."""
    program = (
        "import sys, time; from sizing.calibration.command import in_processes, run\n"
        "print('began', flush=True)\n"
        "sys.exit(run(lambda: in_processes(time.sleep, [60] * 40, 2)))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"began\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.send_signal(signal.SIGINT)
        _, faults = child.communicate(timeout=10)
    assert (child.returncode, faults) == (INTERRUPTED, b"")
    assert in_processes(abs, [-1, 2], 1) == [1, 2]
