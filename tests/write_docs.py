"""Write what README and docs show of the program: outputs, pages from data, and the picture of an answer.

    python tests/write_docs.py

An output stands in a text block below the comment `<!-- llmsize ... -->` that makes it. The pages on accuracy and the glossary
are written whole, the picture from the answer on a terminal.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from places import ROOT

sys.path.insert(0, str(ROOT))

from sizing.calibration.docs import accuracy_page, short_table
from sizing.catalog.shelf import named
from sizing.catalog.topics import TOPICS

DOCS = ROOT / "docs"
OUTPUT = re.compile(r"(<!-- (llmsize [^\n]*) -->\n```text\n)(.*?)(```\n)", re.DOTALL)
SUMMARY = re.compile(r"(<!-- accuracy -->\n)(?:\n\|[^\n]*(?:\n\|[^\n]*)*\n)?")
PICTURED, COLUMNS = "llmsize estimate chat -g h100-sxm", 84
COLOURS = {"31": "#ff9d92", "32": "#6fd39b", "33": "#e9c04a", "2": "#9aa5b1"}
WIDTH, LINE, MARGIN = 7.8, 18, 16  # of a character, of a line, around the text
ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")


def pages() -> list[Path]:
    """README and the pages of docs."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def output(command: str, **environment: str) -> str:
    """What a command prints, each line without spaces at its end."""
    words = [sys.executable, "-m", "sizing", *shlex.split(command)[1:]]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def glossary() -> str:
    """The page on the terms of an answer, from the topics of `llmsize explain`."""
    lines = [
        "# Glossary",
        "",
        "The terms of an answer, as `llmsize explain TERM` has them. Written from `workloads/topics`.",
        "",
    ]
    others = []
    for ident in TOPICS.ids:
        topic = named(TOPICS, ident).spec
        if topic.kind == "term":
            formulas = [f"- `{formula}`" for formula in topic.formulas]
            lines += [
                f"## {topic.name}",
                "",
                topic.does,
                "",
                *formulas,
                *([""] if formulas else []),
                topic.modelled,
                "",
            ]
        else:
            others.append(f"| `{ident}` | {topic.name} |")
    lines += [
        "## Optimisations",
        "",
        "Each has a page of its own: `llmsize explain TOPIC`.",
        "",
        "| topic | about |",
        "| --- | --- |",
    ]
    return "\n".join([*lines, *others]) + "\n"


def picture(text: str) -> str:
    """An SVG of a terminal with `text`, in its colours."""
    rows = text.rstrip("\n").split("\n")
    width, height = COLUMNS * WIDTH + 2 * MARGIN, len(rows) * LINE + 2 * MARGIN
    drawn = []
    for index, row in enumerate(rows):
        parts, style = [], ""
        for at, part in enumerate(ESCAPE.split(row)):
            if at % 2:
                codes = part.split(";")
                fill = next((f' fill="{COLOURS[code]}"' for code in codes if code in COLOURS), "")
                style = fill + (' font-weight="bold"' if "1" in codes else "")
            elif part:
                parts.append(f"<tspan{style}>{html.escape(part)}</tspan>")
        y = MARGIN + LINE * index + LINE * 0.75
        drawn.append(f'<text x="{MARGIN}" y="{y:g}" xml:space="preserve">{"".join(parts)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'aria-label="The answer of {PICTURED}">\n'
        '<rect width="100%" height="100%" rx="8" fill="#14171b"/>\n'
        '<g fill="#eceff2" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'Liberation Mono\',monospace" '
        'font-size="13">\n' + "\n".join(drawn) + "\n</g>\n</svg>\n"
    )


def pictured() -> str:
    """The picture of the answer."""
    prompt = f"\x1b[2m$ {PICTURED}\x1b[0m\n"
    return picture(prompt + output(PICTURED, FORCE_COLOR="1", TERM="xterm-256color", COLUMNS=str(COLUMNS)))


def with_outputs(text: str) -> str:
    """A page with the outputs of today."""
    return OUTPUT.sub(lambda found: found[1] + output(found[2]) + found[4], text)


def with_summary(text: str) -> str:
    """A page with the short table of errors of today."""
    return SUMMARY.sub(lambda found: f"{found[1]}\n{short_table()}", text)


def main() -> None:
    """Write all of it."""
    (DOCS / "accuracy.md").write_text(accuracy_page(), encoding="utf-8")
    (DOCS / "glossary.md").write_text(glossary(), encoding="utf-8")
    (DOCS / "answer.svg").write_text(pictured(), encoding="utf-8")
    for path in pages():
        text = path.read_text(encoding="utf-8")
        path.write_text(with_summary(with_outputs(text)), encoding="utf-8")


if __name__ == "__main__":
    main()
