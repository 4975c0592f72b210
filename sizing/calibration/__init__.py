"""Calibration: the few constants of time in the engine profiles, refitted from measured serving runs.

    python -m sizing.calibration measured.csv more.csv [--write]

simulates a sample of the rows, finds how each prediction changes with each constant, and solves for the constants that explain
the rows best. It solves once for all rows, and once without each fold of whole groups (source, model, GPU). The folds show how
well rows of other sources are predicted. Needs scipy, a development dependency.
"""

from __future__ import annotations
