"""Entry point of `llmsize` and `python -m sizing`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code: 0 done, 1 infeasible, 2 bad input or no output, 130 interrupted."""
    interrupted: list[int] = []
    codes: list[int] = []
    atexit.register(_end, codes)  # registered first, so called last

    def interrupt(number: int, _: object) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
            signal.signal(signal.SIGINT, interrupt)
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        if not interrupted:
            raise
        code = INTERRUPTED  # a class that is being made, an import: some turn an interrupt into an error of theirs
    codes.append(code)
    sys.exit(code)


def _end(codes: list[int]) -> None:
    """End the process with its code, if it has one. Python would free every object, which takes a twentieth of a short run."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or its reader is gone
            stream.flush()
    if codes:
        os._exit(codes[0])


def _run() -> int:
    # A command is over before collecting pays: it would only walk what the command has just built and still needs.
    gc.disable()
    # Nothing here multiplies large matrices, and starting BLAS threads costs more than the whole estimate.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from sizing.cli.main import run
    from sizing.cli.output import tell_of_work

    tell_of_work()
    return run(sys.argv[1:])


if __name__ == "__main__":
    main()
