"""Entry point of `llmsize` and `python -m sizing`."""

from __future__ import annotations

import gc
import os
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code: 0 done, 1 infeasible, 2 bad input or no output, 130 interrupted."""
    interrupted: list[int] = []

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
    gc.freeze()  # Python collects garbage as it ends, for longer than a tenth of a short run
    sys.exit(code)


def _run() -> int:
    # A command is over before collecting pays: it would only walk what the command has just built and still needs.
    gc.disable()
    # Nothing here multiplies large matrices, and starting BLAS threads costs more than the whole estimate.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # No spec has a pydantic plugin; looking for one reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from sizing.cli.main import run
    from sizing.cli.output import tell_of_work

    tell_of_work()
    return run(sys.argv[1:])


if __name__ == "__main__":
    main()
