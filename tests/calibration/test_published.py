"""Published figures, asked on the command line and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from sizing.calibration import published
from sizing.specs.errors import InputError

HEAD = "id,class,command,figure,published"


@pytest.mark.parametrize(
    ("figure", "expected"), [("total_s*1", 0.5), ("1/total_s*1024", 2048.0), ("runs.1.itl_ms.mean*2", 14.0)]
)
def test_a_figure_is_a_path_maybe_inverted_times_a_number(figure: str, expected: float) -> None:
    document = {"total_s": 0.5, "runs": [{}, {"itl_ms": {"mean": 7}}]}
    assert published.figure_of(document, figure) == expected


def test_a_figure_of_the_deployment_is_that_of_separate_pools_where_these_are_the_answer() -> None:
    document = {"serves": "disaggregated", "deployment": None, "disaggregated": {"gpus": 12}}
    assert published.figure_of(document, "deployment.gpus*1") == 12


def test_questions_of_a_file_are_read_and_a_figure_that_is_no_number_is_told(tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    path.write_text(f'{HEAD}\na,AMD,"llmsize step -m x --decode 1",1/total_s*8,36\n', encoding="utf-8")
    (question,) = published.questions(path)
    assert question.arguments == ("step", "-m", "x", "--decode", "1") and question.published == 36
    path.write_text(f"{HEAD}\na,AMD,llmsize step,total_s*1,many\n", encoding="utf-8")
    with pytest.raises(InputError, match="2: published: 'many' is no number"):
        published.questions(path)


def test_what_is_not_answered_is_listed_and_counts_as_wrong_by_all(tmp_path: Path) -> None:
    asked = published.PublishedFigure("a", "AMD", ("step", "--none"), "total_s*1", 1.0)
    (one,) = published.answered([asked])
    assert one.found is None and one.why_not and one.ratio == 0
    every, classes = published.tables([one, published.Answered(asked, 1.1)])
    assert every.row_count == 2 and classes.row_count == 1
