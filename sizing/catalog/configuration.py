"""Settings files: a user's folder with `llmsize.yaml` and own profiles, and the file of a project.

A project has `llmsize.yaml`, or `[tool.llmsize]` in `pyproject.toml`. As with linters, the search starts in the working folder
and goes upwards. The first folder with either file is used.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from sizing.catalog.files import DataFile, expanded, is_file, read_text, read_yaml
from sizing.specs.errors import Fault, InputError

NAME, PYPROJECT, TABLE = "llmsize.yaml", "pyproject.toml", "llmsize"
FOLDER_VARIABLE = "LLMSIZE_HOME"  # the user's folder
FILE_VARIABLE = "LLMSIZE_CONFIG"  # one file instead of the user's and the project's
NO_FILE = "none"
USER, PROJECT = "user file", "project file"


class SettingsFile(NamedTuple):
    """A settings file and its layer: user or project."""

    layer: str
    document: DataFile


def user_folder() -> Path:
    """The user's folder: LLMSIZE_HOME, otherwise the platform's folder for settings (XDG_CONFIG_HOME, ~/.config)."""
    stated = os.environ.get(FOLDER_VARIABLE)
    if stated:
        return expanded(stated)
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or expanded("~/AppData/Roaming")) / TABLE
    usual = "~/Library/Application Support" if sys.platform == "darwin" else "~/.config"
    return Path(os.environ.get("XDG_CONFIG_HOME") or expanded(usual)) / TABLE


def settings_files(folder: Path) -> tuple[SettingsFile, ...]:
    """The settings files for a working folder, the user's file first. Raises InputError if one cannot be read."""
    stated = stated_file()
    if stated is not None:
        if stated == NO_FILE:
            return ()
        try:
            return (SettingsFile(PROJECT, _read(expanded(stated))),)
        except InputError as error:
            missing = [Fault(f"{f.file}: {f.message}", field=FILE_VARIABLE, nearest=f.nearest) for f in error.faults]
            raise InputError(error.faults if is_file(expanded(stated)) else missing) from None
    own, project = user_folder() / NAME, project_file(folder)
    files = [(USER, own)] if is_file(own) else []
    if project is not None and not (files and project.samefile(own)):
        files.append((PROJECT, project))
    return tuple(SettingsFile(layer, _read(path)) for layer, path in files)


def stated_file() -> str | None:
    """The file that LLMSIZE_CONFIG names; `none` if no file should be read; None if the variable is not set."""
    stated = os.environ.get(FILE_VARIABLE)
    return NO_FILE if stated is not None and stated.strip().lower() in ("", NO_FILE) else stated


def project_file(folder: Path) -> Path | None:
    """The project's settings file in the nearest folder, from `folder` upwards; None if there is none."""
    for each in (folder, *folder.parents):
        if is_file(each / NAME):
            return each / NAME
        if is_file(each / PYPROJECT) and _has_table(each / PYPROJECT):
            return each / PYPROJECT
    return None


def _has_table(path: Path) -> bool:
    """Whether a pyproject.toml has settings of this program. False if it cannot be read: other tools will report that."""
    import tomllib

    try:
        text = read_text(path)
        tool = tomllib.loads(text).get("tool") if TABLE in text else None
        return isinstance(tool, dict) and TABLE in tool
    except tomllib.TOMLDecodeError:
        return re.search(rf"^\s*\[\s*tool\s*\.\s*{TABLE}\b", text, re.MULTILINE) is not None
    except InputError:
        return False


def _read(path: Path) -> DataFile:
    """Read the settings of a file. A file with only comments gives an empty mapping."""
    if path.suffix.lower() == ".toml":
        return _read_toml(path)
    if all(not line.strip() or line.lstrip().startswith("#") for line in read_text(path).splitlines()):
        return DataFile({}, str(path), "")
    return read_yaml(path)


def _read_toml(path: Path) -> DataFile:
    import tomllib

    text = read_text(path)
    try:
        table: Any = tomllib.loads(text).get("tool", {}).get(TABLE, {})
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise InputError(f"is not valid TOML: {error}", file=str(path)) from None
    if not isinstance(table, dict):
        raise InputError("must be a table of settings", file=str(path), field=f"tool.{TABLE}")
    return DataFile(table, str(path), _keys_of(text))


def _keys_of(text: str) -> str:
    """The keys of the program's TOML table as YAML text, each on its own line, so that faults get line numbers."""
    lines, inside = [], False
    for line in text.splitlines():
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header is not None:
            inside = re.sub(r"[\s\"']", "", header[1]) == f"tool.{TABLE}"
        key = re.match(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""", line) if inside and header is None else None
        lines.append(f"{key[1]}: x" if key is not None else "")
    return "\n".join(lines)
