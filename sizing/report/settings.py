"""`llmsize config`: settings by layer, the files that state them, the user's own profiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sizing.catalog import fleets, models, profiles, servers, workloads
from sizing.catalog.files import is_file
from sizing.catalog.shelf import user_folder
from sizing.formats.view import Document, Facts, Line, Prose, Rows, Section, Table, in_words
from sizing.question.configuration import NAME, NO_FILE, PREFIX, PROJECT, USER, Configuration, project_file, stated_file
from sizing.question.options import Field

SHELVES = (profiles.GPUS, profiles.ENGINES, models.SHELF, workloads.SHELF, fleets.SHELF, servers.SHELF)


class SettingRow(NamedTuple):
    """A setting. It is `in_force` if no higher layer sets the same option."""

    option: str
    value: str
    layer: str
    place: str
    in_force: bool


class FileRow(NamedTuple):
    """A settings file; `path` is None if there is none."""

    layer: str
    path: str | None
    read: bool


class OwnRow(NamedTuple):
    """The user's own entry in the catalogue."""

    kind: str
    name: str
    path: str


class SettingsReport(NamedTuple):
    """What `llmsize config` shows."""

    settings: tuple[SettingRow, ...]
    files: tuple[FileRow, ...]
    user_folder: str
    own: tuple[OwnRow, ...]
    schema: str = "llmsize.config/1"


class KnownRow(NamedTuple):
    """An option that can be set, its variable, and the value in force."""

    option: str
    variable: str
    value: str | None
    help: str


class KnownReport(NamedTuple):
    """What `llmsize config --all` shows."""

    options: tuple[KnownRow, ...]
    schema: str = "llmsize.config_options/1"


def record(configuration: Configuration) -> SettingsReport:
    """The settings by option (the one in force first), and the places of settings files and own profiles."""
    in_force = configuration.in_force
    rows = [
        SettingRow(each.option, _text(each.value), each.layer, each.place, in_force.get(each.option) is each)
        for each in reversed(configuration.stated)
    ]
    own = [
        OwnRow(shelf.label, path.stem, str(path))
        for shelf in SHELVES
        if shelf.own_path is not None
        for path in sorted(shelf.own_path.glob("*.yaml"))
    ]
    return SettingsReport(tuple(sorted(rows, key=lambda row: row.option)), _files(), str(user_folder()), tuple(own))


def _files() -> tuple[FileRow, ...]:
    stated = stated_file()
    if stated is not None:
        return () if stated == NO_FILE else (FileRow(PROJECT, stated, True),)
    own, project = user_folder() / NAME, project_file(Path.cwd())
    return (
        FileRow(USER, str(own), is_file(own)),
        FileRow(PROJECT, None if project is None else str(project), project is not None),
    )


def record_of_all(options: Iterable[Field], configuration: Configuration) -> KnownReport:
    """Every option that can be set."""
    stated = {name: _text(setting.value) for name, setting in configuration.in_force.items()}
    rows = (KnownRow(each.name, PREFIX + each.name.upper(), stated.get(each.name), each.help) for each in options)
    return KnownReport(tuple(rows))


def _text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


SETTING_COLUMNS = (
    in_words("option", "option"),
    in_words("value", "value"),
    in_words("layer", "from"),
    in_words("place", "where"),
    in_words("in_force", "counts", lambda row: "yes" if row.in_force else "no"),
)
KNOWN_COLUMNS = (in_words("option", "option"), in_words("variable", "variable"), in_words("value", "value"))
OWN_COLUMNS = (in_words("kind", "own"), in_words("name", "name"), in_words("path", "file"))


def _sections(report: SettingsReport) -> Iterator[Section]:
    if report.settings:
        yield Table(SETTING_COLUMNS, report.settings, "/settings")
    else:
        yield Prose((Line("Nothing is set: defaults, workloads and options alone count."),))
    files = [
        Line(
            f"{file.path or 'none found upwards'}{'' if file.read or file.path is None else ' (not there)'}",
            file.layer.removesuffix(" file"),
        )
        for file in report.files
    ]
    folders = ", ".join(f"{shelf.own}/" for shelf in SHELVES if shelf.own is not None)
    yield Facts((*files, Line(f"{report.user_folder}: {folders}", "own")))
    if report.own:
        yield Table(OWN_COLUMNS, report.own, "/own")


document = partial(Document, sections=_sections, rows=lambda report: Rows(SettingRow._fields, report.settings))
document_of_all = partial(
    Document,
    sections=lambda report: [Table(KNOWN_COLUMNS, report.options, "/options")],
    rows=lambda report: Rows(KnownRow._fields, report.options),
)
