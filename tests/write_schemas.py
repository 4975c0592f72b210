"""Write the JSON Schemas that editors read, and what is frozen of all: `python tests/write_schemas.py`.

What a version of a schema says may only grow. A field that goes, or takes less than before, needs a new version: the script
refuses it, as the test does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER, FROZEN = ROOT / "schemas", ROOT / "tests" / "data" / "schemas.json"
sys.path.insert(0, str(ROOT))


def shape(schema: dict[str, Any]) -> list[str]:
    """What a schema promises, a line each: fields with their types, words, and whether a field may be left out."""
    return sorted(set(_lines(schema, schema, "", ())))


def _lines(node: dict[str, Any], whole: dict[str, Any], path: str, seen: tuple[str, ...]) -> Iterator[str]:
    reference = node.get("$ref")
    if reference in seen:
        return
    if reference is not None:
        yield from _lines(whole["$defs"][reference.rpartition("/")[2]], whole, path, (*seen, reference))
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in node.get(key, ()):
            yield from _lines(branch, whole, path, seen)
    kinds = node.get("type", [])
    yield from (f"{path}: {kind}" for kind in ([kinds] if isinstance(kinds, str) else kinds))
    yield from (f"{path}: {word!r}" for word in (*node.get("enum", ()), *([node["const"]] if "const" in node else ())))
    for name, field in node.get("properties", {}).items():
        if name not in node.get("required", ()):
            yield f"{path}.{name} may be left out"
        yield from _lines(field, whole, f"{path}.{name}", seen)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from _lines(node[key], whole, f"{path}[]", seen)
    for number, each in enumerate(node.get("prefixItems", ())):
        yield from _lines(each, whole, f"{path}[{number}]", seen)


def shapes() -> dict[str, list[str]]:
    """The shapes of all schemas by version."""
    from sizing.report.schemas import versions

    found: dict[str, set[str]] = {}
    for version, schema in versions():
        found.setdefault(version, set()).update(shape(schema))
    return {version: sorted(lines) for version, lines in sorted(found.items())}


def gone(frozen: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    """What was promised and is no more; a version that is no longer made has been replaced by a newer one."""
    return [
        f"{version}{line}"
        for version in frozen
        if version in now
        for line in sorted({*frozen[version]} - {*now[version]})
    ]


def files() -> dict[Path, str]:
    """The schema files and their text."""
    from sizing.report.schemas import READ, schema

    return {FOLDER / f"{name}.json": json.dumps(schema(name), indent=2) + "\n" for name in READ}


def main() -> int:
    """Write all files; 1 where something promised is gone."""
    now = shapes()
    frozen = json.loads(FROZEN.read_text(encoding="utf-8")) if FROZEN.exists() else {}
    if lost := gone(frozen, now):
        print("gone without a new version:", *lost, sep="\n  ")
        return 1
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    FROZEN.write_text(json.dumps(now, indent=0) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
