"""Reports of simulations: the table's lines, the timeline as text, and what the pictures hold."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest
from engine_builders import driven, llama_replica

from sizing.answers.simulate import Runs
from sizing.cli.main import run
from sizing.engine.requests import Lengths
from sizing.engine.simulation import Traffic, simulate
from sizing.engine.ticks import TickStep
from sizing.formats.text import render
from sizing.report.ticks import MOST_TICKS, bands, slot_rows

COURSE = [
    "simulate",
    "--ticks",
    "--slots",
    "4",
    "--osl-mean",
    "10",
    "--osl-std",
    "5",
    "--requests",
    "100",
    "--limit",
    "100",
]
OPEN = ["simulate", "-m", "llama-3.1-8b", "-g", "h100-sxm", "--isl", "1000", "--osl", "200", "--rps", "10", "--requests", "300"]  # fmt: skip
Capture = pytest.CaptureFixture[str]


def printed(arguments: list[str], capsys: Capture, code: int = 0) -> str:
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out


# --- the table -------------------------------------------------------------------------------------------------


def test_throughput_stands_beside_the_six_labels(capsys: Capture) -> None:
    out = " ".join(printed([*OPEN, "--tp", "2", "--replicas", "2"], capsys).split())
    assert out.startswith("4 x H100 SXM 80GB = 2 replicas x TP2: ") and "output tokens/s" in out
    for label in ("Llama-3.1-8B", "BF16 weights", "ISL 1,000", "OSL 200", "concurrency", "TP2"):
        assert label in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (OPEN, 0),
        ([*OPEN, "--policy", "engine,static,dynamic,inflight,one-prefill,chunked", "--itl", "1ms"], 1),
        ([*COURSE, "--policy", "static,dynamic,inflight,one-prefill,chunked"], 0),
        ([*COURSE[:-1], "20000"], 0),
    ],
)
def test_lines_fit_eighty_columns_and_end_without_spaces(arguments: list[str], code: int, capsys: Capture) -> None:
    lines = printed(arguments, capsys, code).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines) and lines[0].strip()


def test_side_by_side_has_a_row_a_policy_with_its_figures(capsys: Capture) -> None:
    out = printed([*OPEN, "--policy", "static,inflight", "--ttft", "p99:1us"], capsys, 1)
    rows = [line for line in out.splitlines() if line.endswith("TTFT over the limit")]
    assert [row.split()[0] for row in rows] == ["static", "inflight"]
    assert "0 of 2 policies serve every request in time" in out


def test_ticks_say_which_requests_a_mean_is_over_and_where_the_run_ends(capsys: Capture) -> None:
    out = " ".join(printed(COURSE, capsys).split())
    assert "Mean TTFT of requests with a first token, mean E2E of those done, in ticks" in out
    assert "to the first step that ends at tick 100 or later" in out  # in-flight: at 101
    assert "std 5 (mean drawn" in out
    head = " ".join(printed(COURSE, capsys).partition("Mean TTFT")[0].split())
    assert all(name in head for name in ("policy", "done", "end", "TTFT", "E2E", "ITL", "busy"))


def test_osl_1_has_no_inter_token_latency(capsys: Capture) -> None:
    out = printed([*OPEN, "--osl", "1"], capsys)
    # The first token is the end: one latency, from request to result.
    assert "\nlatency mean " in out and not any(f"\n{name} " in out for name in ("TTFT", "ITL", "E2E"))


# --- the timeline as text --------------------------------------------------------------------------------------


def steps(*rows: tuple[float, float, str]) -> list[TickStep]:
    return [TickStep(start, end, tuple(states), (None,) * len(states), 0) for start, end, states in rows]


def test_one_character_a_tick_and_a_row_a_slot() -> None:
    found = slot_rows(steps((0, 3, "pp"), (3, 4, "dd"), (4, 5, "ed")))
    assert found == ("pppd.", "pppdd")


def test_a_tick_shows_the_step_at_its_start() -> None:
    # A step of 1.5 ticks covers the starts of ticks 0 and 1; the next, from 1.5 to 2.5, that of tick 2.
    assert slot_rows(steps((0, 1.5, "p"), (1.5, 2.5, "d"))) == ("ppd",)


def test_what_would_not_fit_is_left_out() -> None:
    assert slot_rows(steps((0, MOST_TICKS, "p"))) is not None
    assert slot_rows(steps((0, MOST_TICKS + 1, "p"))) is None
    assert slot_rows(steps((0, 1, "p" * 17))) is None
    assert slot_rows([]) is None


def test_bands_fold_without_losing_a_tick() -> None:
    row = "".join("pd."[n % 3] for n in range(123))
    lines = list(bands((row, row[::-1])))
    assert lines[0].split() == ["tick", "0", "10", "20", "30", "40"] and lines[3].split()[1] == "50"
    assert "".join(line.split()[2] for line in lines if line.startswith("slot 1")) == row
    assert max(map(len, lines)) <= 60
    # The mark of tick 10 stands under the first digit of its number.
    assert lines[0].index("10") == lines[1].index(row[0]) + 10


def test_the_course_s_first_steps_are_seen(capsys: Capture) -> None:
    out = printed(COURSE, capsys)
    # Four prefills of 2 ticks share a step of 8; then all decode until slot 2 refills at tick 16.
    assert "slot 1 ppppppppdddddddd" in out and "slot 2 ppppppppddddddddpp" in out
    assert "p prefill, d decode, . empty" in out
    assert "p prefill" not in printed([*COURSE[:-1], "1000"], capsys)


# --- pictures --------------------------------------------------------------------------------------------------


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures drawn, kept before they become bytes."""
    pytest.importorskip("matplotlib")
    from sizing.formats import pictures

    kept: list[Any] = []

    rendered = pictures.rendered

    def keep(drawn: Any, form: str) -> bytes:
        kept.append(drawn)
        return rendered(drawn, form)

    monkeypatch.setattr(pictures, "rendered", keep)
    return kept


def test_slots_are_rows_with_true_widths_and_every_tick_is_coloured(
    figures: list[Any], tmp_path: Any, capsys: Capture
) -> None:
    path = tmp_path / "t.svg"
    printed([*COURSE, "--policy", "static,inflight", "--plot", str(path)], capsys)
    (drawn,) = figures
    upper, lower = drawn.axes[0], drawn.axes[1]
    assert {axis.get_xlim() for axis in drawn.axes} == {(0, 100), (0, 101)}
    assert len(drawn.axes) == 6  # two policies, each with slots, latencies and the queue's axis
    assert [axis.get_title("left").split(":")[0] for axis in drawn.axes[0::2][:2]] == ["static", "inflight"]
    assert [text.get_text() for text in upper.get_legend().get_texts()] == ["prefill", "decode", "empty"]
    assert {text.get_text() for text in lower.get_legend().get_texts()} == {"TTFT", "E2E", "queue size"}
    assert len(upper.collections) == 3 * 4
    # Each slot's rectangles cover 100 ticks once; the first step is 8 ticks wide.
    for slot in range(1, 5):
        boxes = [box.get_extents() for bars in upper.collections for box in bars.get_paths() if box.get_extents().y0 < slot < box.get_extents().y1]  # fmt: skip
        assert sum(box.width for box in boxes) == pytest.approx(100)
        assert min(boxes, key=lambda box: box.x0).width == pytest.approx(8)
    queue = (
        drawn.axes[4].get_lines()[0]
        if drawn.axes[4].get_ylabel().startswith("queue")
        else drawn.axes[-2].get_lines()[0]
    )
    assert (
        queue.get_ydata()[0] == 96 and queue.get_ydata()[-1] == 80
    )  # 100 less four; what the course counts at the end
    ttft = lower.get_lines()[0]
    assert (ttft.get_xdata()[0], ttft.get_ydata()[0]) == (8, 8)


def test_states_differ_without_colour() -> None:
    from sizing.formats.pictures import STATES

    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    tones = sorted(lightness(colour) for colour, _ in STATES)
    assert min(b - a for a, b in pairwise(tones)) > 0.2
    assert STATES[0][1] and not STATES[1][1]


@pytest.mark.parametrize("form", ["svg", "png", "pdf"])
@pytest.mark.parametrize("arguments", [COURSE, OPEN], ids=["ticks", "seconds"])
def test_a_picture_is_written_and_the_same_each_time(
    arguments: list[str], form: str, tmp_path: Any, capsys: Capture
) -> None:
    pytest.importorskip("matplotlib")
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    written = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.{form}"
        printed([*arguments, "--plot", str(path)], capsys)
        written.append(path.read_bytes())
    assert written[0].startswith(starts[form]) and written[0] == written[1]


def test_a_run_in_seconds_shows_load_cache_and_latencies(figures: list[Any], tmp_path: Any, capsys: Capture) -> None:
    printed([*OPEN, "--plot", str(tmp_path / "r.svg")], capsys)
    (drawn,) = figures
    labels = [line.get_label() for axis in drawn.axes for line in axis.get_lines()]
    running = [f"{name} p95 of the last 50" for name in ("E2E", "TTFT")]
    assert sorted(labels) == ["E2E", running[0], "TTFT", running[1], "cache", "queued", "running"]
    e2e = next(line for axis in drawn.axes for line in axis.get_lines() if line.get_label() == "E2E")
    assert len(e2e.get_xdata()) == 300


@pytest.mark.parametrize("arguments", [COURSE, OPEN], ids=["ticks", "seconds"])
def test_without_matplotlib_a_picture_is_one_fault_before_any_work(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: Capture
) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path, rows = tmp_path / "t.svg", tmp_path / "r.csv"
    assert run([*arguments, "--plot", str(path), "--requests-out", str(rows)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and not path.exists() and not rows.exists()
    assert err == (
        "llmsize: --plot: needs matplotlib, which is not installed; it works after pip install 'llmsize[plot]'\n"
    )


# --- what is recorded ------------------------------------------------------------------------------------------


def test_samples_are_few_in_order_and_span_the_run() -> None:
    served = driven(3000, rate_per_s=40.0)
    times = [sample.time for sample in served.samples]
    assert 256 < len(times) < 1024 and times == sorted(times)
    assert times[-1] > 0.9 * served.duration_s
    assert max(sample.running for sample in served.samples) <= served.batch_max
    assert max(sample.cache for sample in served.samples) <= served.cache_max


def test_requests_refused_do_not_make_a_run_unstable() -> None:
    # Every output is longer than the whole pool holds but for none: lengths above the pool are turned away at once.
    traffic = Traffic(Lengths(500), Lengths(50), 500, rate_per_s=10.0, longest=4096)
    full = simulate(llama_replica(), traffic)
    assert full.stable and full.refused == 0
    used = llama_replica().memory
    from dataclasses import replace

    tiny = replace(
        llama_replica(), memory=used._replace(kv_cache_gib=0.02)
    )  # 0.02 GiB hold 163 tokens of 131,072 bytes
    none = simulate(tiny, traffic)
    assert (none.refused, none.completed, none.stable) == (500, 0, True)


def test_table_renders_at_sixty_columns(capsys: Capture) -> None:
    from sizing.cli import ticks
    from sizing.cli.options import SimulateOptions
    from sizing.cli.simulate import OPTIONS
    from sizing.question.options import GivenOptions
    from sizing.report.ticks import document, record

    load = {"requests": 30, "osl_std": 3.0, "limit": "50", "policy": "static,inflight,chunked"}
    values = {option.name: None for option in OPTIONS} | load
    given = GivenOptions(OPTIONS, values)
    asked = ticks.asked(None, given, given.read(SimulateOptions))
    text = render(document(record(asked, ticks.run(asked))), 60)
    assert max(map(len, text.splitlines())) <= 60


def test_three_policies_fit_sixty_columns_in_seconds_too() -> None:
    from sizing.cli.simulate import OPTIONS, scenario_of
    from sizing.question.options import GivenOptions
    from sizing.report.simulate import document, record

    stated = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "isl": 1000, "osl": 200, "osl_std": 100.0, "rps": 80.0}
    values = {option.name: None for option in OPTIONS} | stated | {"requests": 300, "policy": "static,inflight,chunked"}
    asked = scenario_of(None, GivenOptions(OPTIONS, values))
    served = {name: simulate(one, asked.traffic, limits=asked.limits) for name, one in asked.policies.items()}
    text = render(document(record(asked, Runs(served))), 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "--replicas N" in text and "OSL 200 (lognormal, std 100, mean drawn" in " ".join(text.split())


def test_the_running_p95_is_of_the_last_fifty_measurements() -> None:
    from sizing.engine.requests import Requests
    from sizing.report.parts.traffic import WINDOW, latencies

    requests = Requests()
    for number in range(2 * WINDOW):
        requests.add(float(number), 10, 10)
        requests.first_token[number] = number + (1.0 if number < WINDOW else 3.0)
    running = {series.name: series.marks for series in latencies(requests)}[f"TTFT p95 of the last {WINDOW}"]
    assert len(running) == WINDOW + 1  # from the first full window on
    assert running[0].y == 1.0 and running[-1].y == 3.0
    # 5 % of 50 are 2.5: three slow ones are the first that p95 sees.
    assert [mark.y for mark in running[1:5]] == [1.0, 1.0, 3.0, 3.0]
