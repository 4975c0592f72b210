"""Error bands in documents and tables: of predictions alone, in the unit of the number, of the class that it is of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from banded import band, every, use
from places import DATA

from sizing.cli.main import run
from sizing.evidence.errors import compare
from sizing.evidence.predict import predict_rows
from sizing.formats.words import between, milliseconds, number

SAMPLE = DATA / "measured_sample.csv"
SHARED = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200"]
ESTIMATE = ["estimate", *SHARED, "--no-verify"]
SIMULATE = ["simulate", *SHARED]
Capture = pytest.CaptureFixture[str]


def parsed(arguments: list[str], capsys: Capture, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def shown(arguments: list[str], capsys: Capture, code: int = 0) -> str:
    """The table on one line, as folding leaves its words."""
    assert run(arguments) == code
    return " ".join(capsys.readouterr().out.split())


def at(document: dict[str, Any], path: str) -> Any:
    value: Any = document
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


RATES = ("load.requests_per_s", "throughput.")  # of places in flight: they fall as E2E rises
CASES = {
    "rate": [*ESTIMATE, "--rps", "20"],
    "one token": [*ESTIMATE, "--osl", "1", "--rps", "20"],
    "in flight": [*ESTIMATE, "--concurrency", "50"],
    "budget": [*ESTIMATE, "--gpus", "3"],
    "offline": [*ESTIMATE, "--mode", "offline"],
    "memory": ["memory", *SHARED[:4]],
    "simulated": [*SIMULATE, "--concurrency", "8"],
    "side by side": [*SIMULATE, "--concurrency", "8", "--policy", "static,engine"],
}


@pytest.mark.parametrize("name", CASES)
def test_a_band_is_the_number_times_its_ends_and_its_path_leads_there(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    use(monkeypatch, every(0.5, 1.5))
    document = parsed(CASES[name], capsys)
    assert document["bands"]
    for path, found in document["bands"].items():
        value, (low, high) = at(document, path), (0.5, 1.5)
        if name == "in flight" and path.startswith(RATES):
            low, high = (1 / error for error in (high, low))
        assert found == {"low": pytest.approx(value * low), "high": pytest.approx(value * high), "n": 40}


def test_the_rate_of_users_follows_their_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users = rate * (E2E + think time), whatever the error of E2E: a longer wait is a lower rate."""
    use(monkeypatch, every(0.5, 1.5))
    document = parsed([*ESTIMATE, "--users", "50", "--no-verify"], capsys)
    rate, e2e = document["bands"]["load.requests_per_s"], document["bands"]["latency.e2e_ms.mean"]
    for one, other in (("low", "high"), ("high", "low")):
        assert rate[one] * (e2e[other] / 1000 + 30) == pytest.approx(50, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "with_band", "without"),
    [
        # A rate that is asked for is served, not predicted.
        ("rate", {"load.max_requests_per_s", "latency.ttft_ms.p95", "memory.weights_gib"}, {"load.requests_per_s", "throughput.requests_per_s_per_gpu"}),
        ("one token", {"latency.ttft_ms.mean", "latency.solo_ttft_ms"}, {"latency.itl_ms.mean", "latency.solo_itl_ms"}),
        ("in flight", {"load.requests_per_s", "throughput.output_tokens_per_s", "load.max_requests_per_s"}, {"load.concurrency"}),
        ("budget", {"load.requests_per_s", "throughput.requests_per_s_per_gpu"}, set()),
        ("offline", {"load.requests_per_s", "throughput.output_tokens_per_s", "latency.e2e_ms.mean"}, set()),
        ("memory", {"memory.weights_gib", "memory.kv_cache_gib", "memory.kv_cache_tokens"}, {"memory.activation_gib"}),
        ("simulated", {"ttft_ms.mean", "itl_ms.p99", "requests_per_s", "output_tokens_per_s"}, {"ttft_ms.max", "duration_s"}),
        ("side by side", {"runs.1.ttft_ms.mean"}, {"runs.0.ttft_ms.mean", "ttft_ms.mean"}),
    ],
)  # fmt: skip
def test_predictions_have_a_band_and_nothing_else(
    name: str, with_band: set[str], without: set[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    use(monkeypatch, every(0.5, 1.5))
    paths = set(parsed(CASES[name], capsys)["bands"])
    assert with_band <= paths and not without & paths


def test_what_a_stable_run_serves_of_a_rate_is_no_prediction_but_what_a_growing_queue_lets_through_is(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    use(monkeypatch, every(0.5, 1.5))
    met = parsed([*SIMULATE, "--rps", "5", "--requests", "200"], capsys)["bands"]
    assert "ttft_ms.mean" in met and "requests_per_s" not in met
    grown = parsed([*SIMULATE, "--rps", "500", "--replicas", "1", "--requests", "5000"], capsys, 1)
    assert grown["stable"] is False
    assert "requests_per_s" in grown["bands"] and not any(path.startswith("ttft") for path in grown["bands"])


def test_the_class_is_that_of_mode_engine_gpu_kind_and_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each condition that does not hold stands before the one that does; of closed loops with 8, 50 and 200 on one replica.
    wrong = [
        band("itl", 0.1, 0.2, **condition)
        for condition in ({"mode": "batch"}, {"engine": "sglang"}, {"architecture": "ampere"}, {"kind": "moe"})
    ]
    loads = [band("itl", low, 2.0, load=load) for load, low in (("low", 0.8), ("medium", 0.6), ("high", 0.4))]
    use(monkeypatch, [*wrong, *loads])
    for in_flight, low in ((8, 0.8), (50, 0.6), (200, 0.4)):
        for arguments in (
            [*ESTIMATE, "--concurrency", str(in_flight)],
            [*SIMULATE, "--concurrency", str(in_flight), "--requests", "400"],
            [*SIMULATE, "--concurrency", str(2 * in_flight), "--replicas", "2", "--requests", "800"],
        ):
            document = parsed(arguments, capsys)
            path = next(path for path in document["bands"] if path.endswith("itl_ms.mean"))
            assert document["bands"][path]["low"] == pytest.approx(at(document, path) * low)


def test_a_lone_request_has_the_band_of_lone_requests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, [band("ttft", 0.9, 1.1, mode="served", load="solo"), band("ttft", 0.5, 1.5)])
    for extra in (["--rps", "20"], ["--mode", "offline"]):
        document = parsed([*ESTIMATE, *extra], capsys)
        alone, loaded = document["latency"]["solo_ttft_ms"], document["latency"]["ttft_ms"]["mean"]
        assert document["bands"]["latency.solo_ttft_ms"]["high"] == pytest.approx(1.1 * alone)
        assert document["bands"]["latency.ttft_ms.mean"]["high"] == pytest.approx(1.5 * loaded)


def test_all_at_once_is_offline(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    use(monkeypatch, [band("throughput", 0.9, 1.1, mode="offline"), band("throughput", 0.5, 1.5)])
    for arguments in ([*SIMULATE, "--requests", "100"], [*ESTIMATE, "--mode", "offline"]):
        document = parsed(arguments, capsys)
        path = next(path for path in document["bands"] if path.endswith("requests_per_s"))
        assert document["bands"][path]["high"] == pytest.approx(1.1 * at(document, path))


# --- tables ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(180, 310, "180 to 310 ms"), (900, 2100, "900 ms to 2.10 s"), (2100, 4000, "2.10 to 4 s"), (5.001, 5.002, "5.00 ms")],
)  # fmt: skip
def test_a_range_has_its_unit_once_where_both_ends_share_it(low: float, high: float, text: str) -> None:
    assert between(low, high, milliseconds) == text


def test_a_figure_has_its_range_beside_it(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    use(monkeypatch, [band("ttft", 0.5, 2.0), band("throughput", 0.5, 2.0), band("weights", 0.99, 1.01)])
    document = parsed(CASES["rate"], capsys)
    ttft, most = document["latency"]["ttft_ms"]["mean"], document["load"]["max_requests_per_s"]
    text = shown(CASES["rate"], capsys)
    assert f"TTFT mean {milliseconds(ttft)} {between(ttft / 2, 2 * ttft, milliseconds)}" in text
    assert f"most requests/s {number(most)} {between(most / 2, 2 * most, number)}" in text
    weights = document["memory"]["weights_gib"]
    used = parsed(CASES["memory"], capsys)["memory"]["weights_gib"]
    assert weights == used and "engine logs of all kinds" in shown(CASES["memory"], capsys)


@pytest.mark.parametrize("name", [name for name in CASES if name != "side by side"])
def test_without_any_band_the_screen_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, [])
    assert parsed(CASES[name], capsys)["bands"] == {}
    assert "No published runs like this" in shown(CASES[name], capsys)


def test_explained_bands_say_their_class_and_that_it_is_wider_than_the_number_s_own(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    use(monkeypatch, [band("itl", 0.9, 1.2, mode="served", engine="vllm"), band("weights", 0.99, 1.01)])
    told = {e["what"]: e for e in parsed([*CASES["rate"], "--explain"], capsys)["explanations"]}
    itl = told["error band of ITL"]
    assert itl["value"] == "0.9 to 1.2" and itl["source"] == "a test"
    assert itl["inputs"] == (
        "40 published measurements of 5 groups (source, model, GPU): served, vllm (a wider class: any vendor, any "
        "architecture, any kind, any load)"
    )
    assert told["error band of weights"]["inputs"].endswith(": all there are")
    assert told["error band of TTFT"]["value"] == "none" and "nothing published of served" in told["error band of TTFT"]["inputs"]  # fmt: skip
    assert "error band of KV cache = none" in shown(["memory", *SHARED[:4], "--explain"], capsys)


# --- a limit on nothing ----------------------------------------------------------------------------------------


def test_a_simulated_limit_between_tokens_is_refused_for_a_single_token(capsys: Capture) -> None:
    asked = ["simulate", *SHARED[:6], "--osl", "1", "--rps", "10", "--requests", "100"]
    assert run([*asked, "--itl", "5ms"]) == 2
    assert "--itl: has no meaning where an answer is one token" in capsys.readouterr().err
    assert "does not apply" not in shown(asked, capsys)
    of_two = parsed([*asked, "--osl", "2", "--itl", "500ms"], capsys)
    assert not any(a["what"] == "limit on ITL" for a in of_two["assumptions"])


# --- validate --------------------------------------------------------------------------------------------------


def test_a_comparison_has_the_band_of_its_row_and_metric() -> None:
    from sizing.catalog.measured import load_measured

    results = predict_rows(load_measured(SAMPLE))
    bands = [band("ttft", 0.5, 2.0, mode="served"), band("itl", 0.9, 1.1, mode="batch"), band("throughput", 0.8, 1.2)]
    found = {(one.row, one.metric): one for one in compare(results, ("mode",), bands)}
    modes = {"ttft_ms": {"closed_loop", "open_loop"}, "itl_ms": {"static_batch"}, "e2e_ms": set()}
    driven = {"req_per_s", "output_tok_per_s"}  # by the rate of an open loop, and so no predictions there
    ends = {"ttft_ms": (0.5, 2.0), "itl_ms": (0.9, 1.1), "req_per_s": (0.8, 1.2), "output_tok_per_s": (0.8, 1.2)}
    banded = set()
    for (row, metric), one in found.items():
        mode = results[row].row.mode
        predicted = one.predicted > 0 and not (metric in driven and mode == "open_loop")
        if predicted and mode in modes.get(metric, {mode}):
            low, high = ends[metric]
            assert (one.low, one.high) == (pytest.approx(low * one.predicted), pytest.approx(high * one.predicted))
            banded.add(metric)
        else:
            assert one.low is None and one.high is None
    assert banded == set(ends)


def test_coverage_is_the_share_inside(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    arguments = ["validate", str(SAMPLE), "--jobs", "1", "--by", "mode"]
    for low, high, share in ((1e-9, 1e9, 1.0), (1e-9, 2e-9, 0.0)):
        use(monkeypatch, every(low, high))
        document = parsed(arguments, capsys)
        assert {figures["band_coverage"] for figures in document["metrics"].values()} == {share}
        for group in document["groups"]:
            for metric, figures in group["metrics"].items():
                driven = group["by"]["mode"] == "open_loop" and metric in ("req_per_s", "output_tok_per_s")
                assert figures["band_coverage"] == (None if driven else share)
    use(monkeypatch, [])
    assert {figures["band_coverage"] for figures in parsed(arguments, capsys)["metrics"].values()} == {None}


@pytest.mark.parametrize("command", [("estimate",), ("simulate", "--tp", "1"), ("compare",)])
def test_drafts_of_one_token_are_refused(command: tuple[str, ...], capsys: Capture) -> None:
    name, *layout = command
    asked = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "1", "--rps", "2"]
    assert run([name, *asked, "--speculative", "eagle3:3@0.7", *layout]) == 2
    assert "--speculative: has nothing to act on where an answer is one token" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [("--rps", "30"), ("--users", "900")])
def test_a_simulation_has_the_ranges_of_the_estimate_of_its_demand(
    asked: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    question = ["-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", *asked, "--ttft", "p95:500ms"]
    sized = parsed(["estimate", *question, "--no-verify"], capsys)
    count = str(sized["deployment"]["replicas"])
    driven = parsed(["simulate", *question, "--tp", "1", "--replicas", count, "--requests", "2000"], capsys)
    for name in ("ttft", "itl", "e2e"):
        times = [
            found["bands"][f"{path}.mean"]["high"] / found_in[f"{name}_ms"]["mean"]
            for found, path, found_in in (
                (sized, f"latency.{name}_ms", sized["latency"]),
                (driven, f"{name}_ms", driven),
            )
        ]
        assert times[0] == pytest.approx(times[1])
    # Under load no request is faster than a lone one may be.
    alone = sized["bands"]["latency.solo_ttft_ms"]["low"]
    assert min(sized["bands"]["latency.ttft_ms.p95"]["low"], driven["bands"]["ttft_ms.p95"]["low"]) >= alone
