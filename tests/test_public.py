"""The names of the package: usable without a command line, lazy, with an example each that holds."""

from __future__ import annotations

import doctest
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib import import_module

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
    code = "import sys, sizing; [getattr(sizing, n) for n in sizing.PUBLIC]; sizing.ask('chat', gpu='h100-sxm')"
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


def test_money_takes_no_separate_pools() -> None:
    question = sizing.ask("chat", gpu="h100-sxm", disaggregate="auto")
    with pytest.raises(sizing.InputError, match="plan takes no separate pools"):
        sizing.plan(question, sizing.plan_rules())
    with pytest.raises(sizing.InputError, match="cost takes no separate pools"):
        sizing.cost(question, sizing.Ways())


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
