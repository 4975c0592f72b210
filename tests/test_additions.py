"""What a new command and a new format take: their own files, and no line anywhere else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

COMMAND = '''"""`llmsize weigh`: the size of a GPU's memory."""

from __future__ import annotations

from typing import Annotated

import typer

from sizing.cli.options import FORMAT_OPTIONS, takes
from sizing.question.options import GivenOptions


@takes(FORMAT_OPTIONS)
def command(given: GivenOptions, gpu: Annotated[str, typer.Argument(help="GPU type.")]) -> None:
    """Show how much memory a GPU has."""
    from sizing.catalog.profiles import load_gpu
    from sizing.cli.output import chosen_format, write
    from sizing.report.weigh import document

    write(document(load_gpu(gpu).spec), chosen_format(given))
'''
REPORT = '''"""`llmsize weigh`: record and sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sizing.formats.view import Document, Facts, Line, Quantity, Section, rows_of
from sizing.specs.gpu import Gpu

MEMORY = Quantity("memory_gb", "Memory")


class Weight(NamedTuple):
    """A GPU's memory."""

    memory_gb: float
    schema: str = "weigh/1"


def document(gpu: Gpu) -> Document[Weight]:
    """The memory of a GPU for every format."""
    return Document(Weight(gpu.datasheet.memory.marketed_gb), _sections, lambda found: rows_of([found], [MEMORY]))


def _sections(found: Weight) -> Iterator[Section]:
    yield Facts((Line(MEMORY.text(found), MEMORY.heading),))
'''
FORMAT = '''"""Documents as lines of `key: value`."""

from __future__ import annotations

from typing import Any

from sizing.formats.view import Document, plain


def write(document: Document[Any]) -> str:
    """The record's own figures, a line each."""
    return "\\n".join(f"{key}: {value}" for key, value in plain(document.record).items())
'''
# Two files for a command, one for a format: more must not be needed.
NEW = {"cli/weigh.py": COMMAND, "report/weigh.py": REPORT, "formats/lines.py": FORMAT}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the new files alone."""
    place = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "sizing", place / "sizing", ignore=shutil.ignore_patterns("__pycache__"))
    for data in ("hardware_profiles", "workloads"):
        (place / data).symlink_to(ROOT / data)
    for name, text in NEW.items():
        path = place / "sizing" / name
        assert not path.exists()
        path.write_text(text, encoding="utf-8")
    return place


def run(copy: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sizing", *arguments], cwd=copy, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_command_runs_and_has_help(copy: Path) -> None:
    assert "80" in run(copy, "weigh", "h100-sxm")
    assert run(copy, "weigh", "h100-sxm", "--format", "csv").split() == ["memory_gb", "80.0"]
    assert "weigh" in run(copy, "--help") and "GPU type." in run(copy, "weigh", "--help")
    assert "weigh" in run(copy, "completion", "words", "--", "w").split()


def test_a_new_format_is_one_of_every_command(copy: Path) -> None:
    assert "memory_gb: 80.0" in run(copy, "weigh", "h100-sxm", "--format", "lines")
    layout = ("-m", "llama-3.1-8b", "-g", "h100-sxm")
    assert run(copy, "memory", *layout, "--format", "lines").startswith("schema: llmsize.memory/1")
