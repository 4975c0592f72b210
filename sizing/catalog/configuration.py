"""Files of settings: a user's folder with `llmsize.yaml` and own profiles, and the file of a project.

A project has `llmsize.yaml`, or `[tool.llmsize]` in `pyproject.toml`; the nearest folder above the working folder that has
either counts, as linters do it.
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
FILE_VARIABLE = "LLMSIZE_CONFIG"  # one file in place of the user's and the project's
NO_FILE = "none"
USER, PROJECT = "user file", "project file"


class SettingsFile(NamedTuple):
    """A file of settings, and the layer that it is."""

    layer: str
    document: DataFile


def user_folder() -> Path:
    """The user's folder: LLMSIZE_HOME, else where the platform keeps settings (XDG_CONFIG_HOME, ~/.config)."""
    stated = os.environ.get(FOLDER_VARIABLE)
    if stated:
        return expanded(stated)
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or expanded("~/AppData/Roaming")) / TABLE
    usual = "~/Library/Application Support" if sys.platform == "darwin" else "~/.config"
    return Path(os.environ.get("XDG_CONFIG_HOME") or expanded(usual)) / TABLE


def settings_files(folder: Path) -> tuple[SettingsFile, ...]:
    """The files of settings for a working folder, the user's first. Raises InputError for one that cannot be read."""
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
    """The one file that LLMSIZE_CONFIG names, `none` where no file shall be read; None where it says nothing."""
    stated = os.environ.get(FILE_VARIABLE)
    return NO_FILE if stated is not None and stated.strip().lower() in ("", NO_FILE) else stated


def project_file(folder: Path) -> Path | None:
    """The file of the nearest folder, from `folder` upwards; None without one."""
    for each in (folder, *folder.parents):
        if is_file(each / NAME):
            return each / NAME
        if is_file(each / PYPROJECT) and _has_table(each / PYPROJECT):
            return each / PYPROJECT
    return None


def _has_table(path: Path) -> bool:
    """Whether a pyproject.toml speaks of this program; one that cannot be read is another program's to complain of."""
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
    """The settings of a file: a mapping; empty where nothing but comments is in it."""
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
    """The lines of a TOML file as YAML: keys of the table alone, each on its line, by which faults are placed."""
    lines, inside = [], False
    for line in text.splitlines():
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header is not None:
            inside = re.sub(r"[\s\"']", "", header[1]) == f"tool.{TABLE}"
        key = re.match(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""", line) if inside and header is None else None
        lines.append(f"{key[1]}: x" if key is not None else "")
    return "\n".join(lines)
