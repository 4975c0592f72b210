"""Predictions against published measurements: what a row means, its prediction by mode, and how far off it is."""

from __future__ import annotations
