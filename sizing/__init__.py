"""llmsize: how many GPUs an LLM service needs, how sure that is, and what it costs.

    >>> import sizing
    >>> question = sizing.ask("chat", gpu="h100-sxm")
    >>> sizing.estimate(question).best.gpus
    8

`ask` builds a question from the options of the command line, and `ask_layout` builds one about a single layout. The other
names in PUBLIC answer a question. They print nothing and return data.

The subpackages form layers. A file imports only from its own subpackage and from the layers below:

    cli                            reads options into a question, calls the library, prints; nothing else prints
    report                         turns answers into documents; one file per command
    planning, launch, calibration  fleets and costs; launch commands and manifests; constants refitted from measurements
    answers                        search, confirmation by simulation, comparison, variation, curves
    evidence                       measured rows against predictions
    engine                         simulation of the scheduler and of KV cache transfers between pools
    question, replica              the resolved question; one engine instance: layouts, step times, capacity
    catalog, model, formats        names and files to specs; operations, memory, attention; documents to text
    specs                          frozen, validated types, units, errors
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sizing.answers.compare import compare as compare
    from sizing.answers.curve import curve as curve
    from sizing.answers.curve_lines import Grid as Grid
    from sizing.answers.curve_lines import Layouts as Layouts
    from sizing.answers.deployment import memory as memory
    from sizing.answers.estimate import estimate as estimate
    from sizing.answers.simulate import Driving as Driving
    from sizing.answers.simulate import scenario as scenario
    from sizing.answers.simulate import simulate as simulate
    from sizing.launch.check import check as check
    from sizing.launch.deploy import deploy as deploy
    from sizing.planning.cost import Ways as Ways
    from sizing.planning.cost import cost as cost
    from sizing.planning.plan import plan as plan
    from sizing.planning.rules import ProvisionRules as ProvisionRules
    from sizing.planning.rules import plan_rules as plan_rules
    from sizing.question.ask import ask as ask
    from sizing.question.ask import ask_layout as ask_layout
    from sizing.specs.errors import InputError as InputError

__version__ = "0.1.0"

PUBLIC = {
    "ask": "question.ask",
    "ask_layout": "question.ask",
    "estimate": "answers.estimate",
    "compare": "answers.compare",
    "memory": "answers.deployment",
    "scenario": "answers.simulate",
    "Driving": "answers.simulate",
    "simulate": "answers.simulate",
    "curve": "answers.curve",
    "Grid": "answers.curve_lines",
    "Layouts": "answers.curve_lines",
    "plan": "planning.plan",
    "plan_rules": "planning.rules",
    "ProvisionRules": "planning.rules",
    "cost": "planning.cost",
    "Ways": "planning.cost",
    "deploy": "launch.deploy",
    "check": "launch.check",
    "shown": "report.notebook",
    "InputError": "specs.errors",
}  # public names and their modules; each module is loaded at first use
__all__ = [*PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'sizing' has no attribute {name!r}")
    return getattr(import_module(f"sizing.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *PUBLIC]
