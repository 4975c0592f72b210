"""`python -m sizing.calibration`: refit the constants of time (`refit.py`)."""

from __future__ import annotations

import sys

from sizing.calibration.command import run


def main() -> None:
    """Refit. What takes long to load is loaded here, where an interrupt is expected."""
    from sizing.calibration.refit import main as refit

    refit()


if __name__ == "__main__":
    sys.exit(run(main))
