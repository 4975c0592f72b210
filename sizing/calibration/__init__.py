"""Calibration: the few constants of time in the engine profiles, refitted from measured serving runs.

    python -m sizing.calibration measured.csv more.csv [--write]

simulates a sample of the rows, asks how each prediction follows from each constant, and solves for the constants that
explain the rows best; once for all of them, and once for each fold of whole groups (source, model, GPU) without it, which
says how well rows of other sources are predicted. Needs scipy, a development dependency.
"""

from __future__ import annotations
