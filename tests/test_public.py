"""The names of the package: usable without a command line, lazy, with an example each that holds."""

from __future__ import annotations

import doctest
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib import import_module
from types import SimpleNamespace

import pytest
from places import ROOT

import sizing

FUNCTIONS = [name for name in sizing.PUBLIC if name.islower()]


@pytest.mark.parametrize("name", sizing.PUBLIC)
def test_every_name_is_there(name: str) -> None:
    assert getattr(sizing, name).__name__ == name
    assert name in dir(sizing)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'estimates'"):
        _ = sizing.estimates


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example_that_holds(name: str) -> None:
    module = import_module(f"sizing.{sizing.PUBLIC[name]}")
    examples = doctest.DocTestFinder(recurse=False).find(getattr(module, name), name, module)
    assert sum(len(example.examples) for example in examples), f"{name} has no example"
    assert sum(doctest.DocTestRunner().run(example).failed for example in examples) == 0


def test_no_name_loads_the_command_line() -> None:
    asked = "[getattr(sizing, n) for n in sizing.PUBLIC if n != 'shown']"  # which writes what the command line prints
    code = f"import sys, sizing; {asked}; sizing.ask('chat', gpu='h100-sxm')"
    code += "; print(*[m for m in ('typer', 'rich', 'matplotlib', 'jinja2', 'sizing.report', 'sizing.cli') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_importing_the_package_loads_nothing_else() -> None:
    code = (
        "import sys, sizing; print(*[m for m in sys.modules if m.startswith('sizing.') or m in ('numpy', 'pydantic')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_a_question_travels_and_is_asked_from_many_threads() -> None:
    question = sizing.ask("chat", gpu="h100-sxm", rps=2)
    assert pickle.loads(pickle.dumps(question)) == question
    with ThreadPoolExecutor(4) as threads:
        others = list(threads.map(lambda _: sizing.ask("chat", gpu="h100-sxm", rps=2), range(4)))
    assert all(other == question for other in others)


def test_an_answer_travels_and_is_found_in_many_threads() -> None:
    question = sizing.ask("chat", gpu="h100-sxm", rps=2)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: sizing.estimate(question, simulated=False), range(4)))
    assert {outcome.best.gpus for outcome in found if outcome.best is not None} == {found[0].best.gpus}
    assert pickle.loads(pickle.dumps(found[0])).best.gpus == found[0].best.gpus


def test_the_package_s_own_example_holds() -> None:
    assert doctest.testmod(sizing).failed == 0


SMALL = sizing.ask("chat", gpu="h100-sxm", rps=2)


def test_all_faults_come_at_once() -> None:
    with pytest.raises(sizing.InputError) as caught:
        sizing.ask("chat", gpu="h100-smx", precision="fp3", headroom="lots")
    assert len(caught.value.faults) == 3


def test_unknown_options_are_told_all_at_once_with_the_nearest_name() -> None:
    with pytest.raises(sizing.InputError) as caught:
        sizing.ask("chat", gpuu="h100-sxm", precison="fp8")
    assert [(fault.field, fault.nearest) for fault in caught.value.faults] == [
        ("gpuu", "gpu"),
        ("precison", "precision"),
    ]


def test_an_unknown_option_hides_no_other_mistake() -> None:
    with pytest.raises(sizing.InputError) as caught:
        sizing.ask(gpu="h999", ttft="5", rsp=3)
    assert [fault.field for fault in caught.value.faults] == ["rsp", "--ttft", "--model", "--gpu"]


def test_a_length_above_the_longest_of_its_workload_names_it() -> None:
    with pytest.raises(sizing.InputError) as caught:
        sizing.ask("rag", gpu="h100-sxm", isl=12_000)
    assert [str(fault) for fault in caught.value.faults] == [
        "--isl: 12,000 is above the longest of the workload rag, 6,000 tokens (isl_max); add --isl-max"
    ]


def test_cost_without_ways_is_of_rented_gpus() -> None:
    question = sizing.ask(model="llama-3.1-8b", gpu="h100-sxm", isl=500, osl=100, rps=5)
    bill = sizing.cost(question, simulated=False)
    best = sizing.estimate(question, simulated=False).best
    assert best is not None and bill.options[0].usd_per_month == pytest.approx(best.usd_per_month)
    with pytest.raises(sizing.InputError, match="ways: None is not allowed; allowed: Ways"):
        sizing.cost(question, None)  # type: ignore[arg-type]


def test_a_layout_is_not_asked_for_a_demand() -> None:
    with pytest.raises(sizing.InputError, match="rps: is no option here"):
        sizing.ask_layout(model="llama-3.1-8b", gpu="h100-sxm", rps=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"spare": -3}, "spare: must be a whole number"),
        ({"availability": 2.0}, "availability: '2.0' is above 1: write 2% or 0.02"),
        ({"sparse": 1}, "sparse: is no rule of a plan"),
        ({"growth": "5%", "start": "2027-12", "until": "2026-12"}, "is not after the day of the plan"),
    ],
)
def test_rules_of_a_plan_are_checked(options: dict[str, object], words: str) -> None:
    with pytest.raises(sizing.InputError, match=words):
        sizing.plan_rules(**options)


def test_growth_starts_today_unless_stated() -> None:
    assert sizing.plan_rules(growth="5%", until="2031-12").start == date.today()


def test_the_memory_of_a_refused_layout_is_no_answer() -> None:
    with pytest.raises(sizing.InputError, match="TP3 is refused: 64 attention heads"):
        sizing.memory(sizing.ask_layout(model="llama-3.1-70b", gpu="h100-sxm", tp=3))


def test_equal_questions_have_equal_outcomes_that_can_be_shown() -> None:
    first, second = (sizing.estimate(sizing.ask("chat", gpu="h100-sxm")) for _ in range(2))
    assert first == second == pickle.loads(pickle.dumps(first))
    assert len(repr(first)) < 20_000


@pytest.mark.parametrize(
    ("workload", "options", "words"),
    [
        (5, {}, "workload: 5 is no text"),
        ("chat", {"gpu": 5}, "gpu: 5 is no text"),
        ("chat", {"gpu": "h100-sxm", "precision": 8}, "precision: 8 is no text"),
    ],
)
def test_what_is_no_name_is_refused(workload: object, options: dict[str, object], words: str) -> None:
    with pytest.raises(sizing.InputError, match=words):
        sizing.ask(workload, **options)  # type: ignore[arg-type]


def test_paths_and_lists_are_taken_as_names() -> None:
    question = sizing.ask(ROOT / "workloads" / "traffic" / "chat.yaml", gpu=["h100-sxm", "a100-sxm-80gb"])
    assert [gpu_type.id for gpu_type in question.space.gpu_types] == ["h100-sxm", "a100-sxm-80gb"]


def test_a_plan_takes_no_separate_pools_and_a_cost_prices_both() -> None:
    question = sizing.ask("chat", gpu="h100-sxm", disaggregate="auto")
    with pytest.raises(sizing.InputError, match="plan takes no separate pools"):
        sizing.plan(question, sizing.plan_rules())
    bill = sizing.cost(question, sizing.Ways(), simulated=False)
    assert bill.options[0].gpus == sum(pool.gpus for pool in bill.deployed[0].best.pools)


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (lambda: sizing.Grid(sizing.Layouts((0,), ()), (1, -4), arrivals="steady"), ["layouts.tp", "layouts.pp", "in_flight", "arrivals"]),  # type: ignore[arg-type]
        (lambda: sizing.scenario(SMALL, sizing.Driving(policies=("inflght",), requests=0, routing="least", seed=-1)), ["policies", "requests", "routing", "seed"]),  # type: ignore[arg-type]
        (lambda: sizing.cost(SMALL, sizing.Ways(clouds=("aws",), api="deepseek", split=-1.0)), ["clouds", "api", "split"]),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_wrong_values_are_named_by_their_fields(made: Callable[[], object], fields: list[str]) -> None:
    with pytest.raises(sizing.InputError) as caught:
        made()
    assert [fault.field for fault in caught.value.faults] == fields


@pytest.mark.parametrize("spread", [{"isl_std": 100.0}, {"length_ratio": 0.8}])
def test_turns_and_other_lengths_contradict_each_other_without_a_command_line_too(spread: dict[str, float]) -> None:
    talks = sizing.ask(model="llama-3.1-8b", gpu="h100-sxm", isl=500, osl=50, rps=2, turns=3)
    with pytest.raises(sizing.InputError, match="turns say how long prompts are"):
        sizing.scenario(talks, sizing.Driving(requests=20, **spread))  # type: ignore[arg-type]


def test_a_result_is_shown_as_the_command_line_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    from sizing.cli.main import run

    found = sizing.shown(sizing.estimate(sizing.ask("chat", gpu="h100-sxm", rps=2), simulated=False))
    for arguments, text in (
        (("--json",), found.to_json()),
        (("--format", "markdown"), found._repr_markdown_()),
        ((), str(found)),
    ):
        assert run(["estimate", "chat", "-g", "h100-sxm", "--rps", "2", "--no-verify", *arguments]) == 0
        assert capsys.readouterr().out.rstrip("\n") == text.rstrip("\n")
    assert json.loads(found.to_json()) == found.to_dict()
    assert found.record.feasible


def test_plans_bills_and_runs_are_shown() -> None:
    question = sizing.ask("chat", gpu="h100-sxm", rps=2)
    plan = sizing.shown(sizing.plan(question, sizing.plan_rules(spare=1), simulated=False))
    bill = sizing.shown(sizing.cost(question, sizing.Ways(clouds=(("lambda", "on-demand"),)), simulated=False))
    driven = sizing.scenario(question, sizing.Driving(requests=20))
    runs = sizing.shown(sizing.simulate(driven), driven)
    schemas = [each.to_dict()["schema"] for each in (plan, bill, runs)]
    assert schemas == ["llmsize.plan/1", "llmsize.cost/1", "llmsize.simulation/1"]
    with pytest.raises(sizing.InputError, match="int is no result that can be shown"):
        sizing.shown(5)  # type: ignore[arg-type]


def test_a_memory_and_a_curve_are_shown_with_what_they_were_asked(capsys: pytest.CaptureFixture[str]) -> None:
    from sizing.cli.main import run

    asked = sizing.ask_layout(model="llama-3.1-8b", gpu="l40s", max_model_len=8192)
    held = sizing.memory(asked)
    assert run(["memory", "-m", "llama-3.1-8b", "-g", "l40s", "--max-model-len", "8192"]) == 0
    assert capsys.readouterr().out == f"{sizing.shown(held, question=asked)}\n"
    with pytest.raises(sizing.InputError, match="is not the memory of this question"):
        sizing.shown(held, question=sizing.ask_layout(model="llama-3.1-8b", gpu="l4", max_model_len=8192))
    question = sizing.ask("chat", model="llama-3.1-8b", gpu="h100-sxm")
    grid = sizing.Grid(sizing.Layouts(tp=(1,), pp=(1,)), in_flight=(1, 8), simulated=False)
    drawn = sizing.curve(question, grid)
    assert sizing.shown(drawn, question=question, grid=grid).to_dict()["schema"] == "llmsize.curve/1"
    for alone in (held, drawn):
        with pytest.raises(sizing.InputError, match="is no result that can be shown"):
            sizing.shown(alone)


def test_rows_are_a_data_frame_where_pandas_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sizing.shown(sizing.estimate(sizing.ask("chat", gpu="h100-sxm", rps=2), simulated=False))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(sizing.InputError, match="pandas is not installed; run pip install pandas"):
        found.to_dataframe()
    made: list[tuple[list[list[object]], list[str]]] = []
    stand_in = SimpleNamespace(DataFrame=lambda rows, columns: made.append((rows, columns)))
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    found.to_dataframe()
    ((rows, columns),) = made
    assert "gpus" in columns
    assert {len(row) for row in rows} == {len(columns)}


def test_nothing_but_what_is_asked_for_reaches_the_network() -> None:
    """A socket that anything opens fails the command; the hub alone, which `hub:` names, is asked for."""
    code = """
import socket, sys
def refused(*arguments, **keywords):
    raise AssertionError("a socket was opened")
socket.socket = socket.create_connection = socket.getaddrinfo = refused
from sizing.cli.main import run
for line in ("estimate chat -g h100-sxm -q", "memory -m llama-3.1-8b -g l40s", "gpus", "config", "schema workload", "explain ttft",
             "simulate -m llama-3.1-8b -g h100-sxm --isl 100 --osl 10 --rps 2 --requests 20", "models no/such-model"):
    run(line.split())
print("done", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "a socket was opened" not in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "done"
