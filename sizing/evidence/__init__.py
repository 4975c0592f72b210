"""Predictions against published measurements: the meaning of a row, its prediction, and the error of the prediction."""

from __future__ import annotations
