"""Which band a number gets."""

from __future__ import annotations

import numpy as np
import pytest

from sizing.catalog import shelf
from sizing.catalog.runs import published
from sizing.specs.bands import Band, Bands, Corrections, Situation, find, region

SERVED = Situation(mode="served", vendor="NVIDIA", engine="vllm", architecture="hopper", kind="dense", load="low")


def band(**conditions: str) -> Band:
    return Band.model_validate({"metric": "itl", "low": 0.9, "high": 1.2, "n": 50, "groups": 5, **conditions})


def test_the_first_whose_conditions_hold_wins() -> None:
    bands = [band(engine="sglang"), band(engine="vllm", load="high"), band(engine="vllm"), band()]
    assert find(bands, "itl", SERVED) is bands[2]
    assert find(bands, "itl", SERVED._replace(load="high")) is bands[1]
    assert find(bands, "itl", SERVED._replace(engine="tensorrt-llm")) is bands[3]
    assert find(bands, "ttft", SERVED) is None


def test_an_unknown_load_takes_no_band_of_one_load() -> None:
    bands = [band(load="low"), band()]
    assert find(bands, "itl", SERVED._replace(load=None)) is bands[1]


@pytest.mark.parametrize(("in_flight", "load"), [(1, "solo"), (1.5, "low"), (8, "low"), (9, "medium"), (64, "medium"), (65, "high")])  # fmt: skip
def test_regions_end_where_they_say(in_flight: float, load: str) -> None:
    assert region(in_flight) == load


def test_every_band_of_the_file_holds_one_measurement_or_more_and_lies_around_what_it_is_of() -> None:
    bands = shelf.only(Bands).bands
    assert all(0 < band.low < band.high for band in bands)
    assert {band.metric for band in bands} == {"ttft", "itl", "e2e", "throughput", "weights", "kv_cache"}


@pytest.mark.parametrize("metric", ["ttft", "itl", "e2e", "throughput"])
def test_what_is_served_on_any_nvidia_card_has_a_band(metric: str) -> None:
    for load in (None, "solo", "low", "medium", "high"):
        for kind in ("dense", "moe"):
            asked = SERVED._replace(engine="sglang", architecture="volta", kind=kind, load=load)  # type: ignore[arg-type]
            assert find(shelf.only(Bands).bands, metric, asked) is not None  # type: ignore[arg-type]


def test_every_band_of_a_time_lies_around_its_own_prediction() -> None:
    times = [band for band in shelf.only(Bands).bands if band.metric not in ("weights", "kv_cache")]
    assert times and all(band.low <= 1.0 <= band.high for band in times)


def test_corrections_are_of_three_groups_and_in_bounds() -> None:
    assert shelf.only(Corrections).corrections
    for correction in shelf.only(Corrections).corrections:
        assert correction.groups >= 3 and correction.mode in ("served", "offline")
        assert 0.3 < correction.decode < 2.6 and 0.3 < correction.prefill < 2.6


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("architecture", ["hopper", "blackwell", "cdna3", "ada"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("mode", ["served", "offline"])
def test_published_runs_are_centred_or_few(mode: str, engine: str, architecture: str, kind: str) -> None:
    """What a question is sized by has its median near 1 for the time of a request, as the corrections promise."""
    vendor = "AMD" if architecture == "cdna3" else "NVIDIA"
    runs = published()
    like = runs.like(Situation(mode, vendor, engine, architecture, kind, None), ("throughput",))  # type: ignore[arg-type]
    if like is None:
        return
    assert like.groups >= runs.least_groups
    order = np.argsort(like.of("throughput"))
    share = np.cumsum(like.weights[order]) / like.weights.sum()
    assert 0.75 < like.of("throughput")[order][int(np.searchsorted(share, 0.5))] < 1.35
