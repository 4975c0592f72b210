"""Layouts that differ in size and speed alone, stacked: the closed form answers for all of them at once, a row each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.attention.terms import Numeric
from sizing.steady_state import Point, Service
from sizing.step import Curves


class Stack(NamedTuple):
    """Step curves and service of several layouts: what differs between them is a column, the tables a matrix."""

    curves: Curves
    service: Service


def shared(curves: Curves, service: Service) -> Hashable:
    """Return what layouts must have in common to be stacked: the host's part, lengths, chunks, order of steps."""
    own = (curves.host, curves.front_end_s, curves.launch_s, curves.captured_tokens)
    has = (curves.again_s is None, curves.joined_s is None, curves.shared_s is None)
    return *own, curves.verified, *has, replace(service, pp=1, dp=1, even_stages=None)


def stack(curves: Sequence[Curves], services: Sequence[Service]) -> Stack:
    """Stack layouts that are alike in all that `shared` says."""
    return Stack(
        replace(
            curves[0],
            body_s=np.stack([one.body_s for one in curves]),
            head_s=np.stack([one.head_s for one in curves]),
            decode_floor_s=column([one.decode_floor_s for one in curves]),
            decode_slope_s=column([one.decode_slope_s for one in curves]),
            prompt_attention_s=column([one.prompt_attention_s for one in curves]),
            largest_stage=column([one.largest_stage for one in curves]),
            last_stage=column([one.last_stage for one in curves]),
            again_s=_rows([one.again_s for one in curves]),
            joined_s=_rows([one.joined_s for one in curves]),
            shared_s=_rows([one.shared_s for one in curves]),
        ),
        replace(
            services[0],
            pp=column([service.pp for service in services]),
            dp=column([service.dp for service in services]),
            even_stages=column([service.stages for service in services]),
        ),
    )


def _rows(tables: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64] | None:
    """Return tables that all of the layouts have, a row each, or None where none has."""
    found = [table for table in tables if table is not None]
    return np.stack(found) if found else None


def column(values: Sequence[Numeric]) -> NDArray[np.float64]:
    """Return one value a layout as a column, which loads in rows go along with."""
    return np.array(values, dtype=float)[:, np.newaxis]


def row(points: Point, index: int) -> Point:
    """Return the operating points of one layout."""

    def of(statistics: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
        return {name: values[index] for name, values in statistics.items()}

    return Point(
        requests_per_s=points.requests_per_s[index],
        decoding=points.decoding[index],
        running=points.running[index],
        ttft_s=of(points.ttft_s),
        itl_s=of(points.itl_s),
        e2e_s=of(points.e2e_s),
        prefill_share=points.prefill_share[index],
        stable=points.stable[index],
    )
