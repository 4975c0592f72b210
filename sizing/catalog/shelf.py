"""Names and files of the catalogue: how a name finds its file, and one loader for every kind of file.

`load(SHELF, "H100 SXM")` reads an entry of a folder by one of its names, or a user's own file by its path. `only(Bands)` reads
the single file of a kind, once.

Names are compared without case, spaces, hyphens and underscores. A name that is a file's stem opens the file directly. For any
other name the first two lines (name and aliases) of each file in the folder are read.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from sizing.catalog.files import DataFile, data_folder, expanded, is_file, read_yaml, validate
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.frozen import Frozen
from sizing.specs.values import OneFile, SpecT

T_co = TypeVar("T_co", covariant=True)
OneFileT = TypeVar("OneFileT", bound=OneFile)

_STEM = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}\Z")
_LISTED = re.compile(r"""\s*(?:'([^']*)'|"([^"]*)"|([^,\[\]]+))""")
_SEPARATORS = re.compile(r"[\s_:-]+")
MOST_LISTED, MOST_LIKELY = 6, 3  # names listed that match, names suggested
LEAST_BEGINNING = 3  # fewest characters with which a name can be abbreviated
PROGRAM = "llmsize"
FOLDER_VARIABLE = "LLMSIZE_HOME"  # the user's folder
YAML_SUFFIXES = (".yaml", ".yml")


def user_folder() -> Path:
    """The user's folder: LLMSIZE_HOME, otherwise the platform's folder for settings (XDG_CONFIG_HOME, ~/.config)."""
    stated = os.environ.get(FOLDER_VARIABLE)
    if stated:
        return expanded(stated)
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or expanded("~/AppData/Roaming")) / PROGRAM
    usual = "~/Library/Application Support" if sys.platform == "darwin" else "~/.config"
    return Path(os.environ.get("XDG_CONFIG_HOME") or expanded(usual)) / PROGRAM


class Found(Frozen, Generic[T_co]):
    """A spec and its file. `id` is the file's stem. `matched_from` is the name as written, if it differs."""

    spec: T_co
    id: str
    path: Path
    matched_from: str | None = None


class CatalogEntry(NamedTuple):
    """A file of the catalogue by its head lines: stem, display name, aliases."""

    id: str
    path: Path
    name: str
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of this file."""
        return (self.id, self.name, *self.aliases)


class Shelf(Frozen, Generic[SpecT]):
    """One folder of the catalogue: the spec of its files, its location, and the command that lists it.

    `check` raises InputError for faults of a user's own file that its spec does not find. `dots_matter` keeps dots in
    comparisons: Llama 3.1 is not Llama 31. GPUs have no such names.
    """

    spec: type[SpecT]
    label: str
    kind: str
    folder: str
    listing: str
    check: Callable[[SpecT, DataFile], None] | None = None
    dots_matter: bool = False
    own: str | None = None  # the folder of a user's own files, in the user's folder

    @property
    def path(self) -> Path:
        """The folder in the catalogue."""
        return data_folder(self.kind) / self.folder

    @property
    def own_path(self) -> Path | None:
        """The folder of the user's own files; None if this kind has none."""
        return None if self.own is None else user_folder() / self.own

    @property
    def ids(self) -> tuple[str, ...]:
        """The sorted stems of the files. A file that begins with an underscore is not an entry."""
        folders = (self.path,) if self.own_path is None else (self.path, self.own_path)
        found = {path.stem for folder in folders for path in folder.glob("*.yaml") if not path.name.startswith("_")}
        return tuple(sorted(found))

    def file(self, stem: str) -> Path:
        """The file of an entry. Raises InputError if a user's own file has the name of a catalogue file."""
        known, own = self.path / f"{stem}.yaml", None if self.own_path is None else self.own_path / f"{stem}.yaml"
        if own is None or not is_file(own):
            return known
        if is_file(known):
            message = f"has the name of a {self.label} that is known already: whose numbers count would not be seen"
            raise InputError(Fault(message, file=str(own), remedy=f"use another name, as my-{stem}.yaml"))
        return own

    def key(self, name: str) -> str:
        """A name reduced to the characters that count in a comparison."""
        dropped = "-" if self.dots_matter else "-."
        return hyphenated(name).translate(str.maketrans("", "", dropped))


SINGLE_FILES: dict[type[OneFile], Any] = {}  # those read so far; what replaces an entry holds for the process


def only(spec_type: type[OneFileT]) -> OneFileT:
    """The single file of a kind, read once per process. Raises InputError for every fault of the file."""
    if spec_type not in SINGLE_FILES:
        kind, _, name = spec_type.FILE.partition("/")
        SINGLE_FILES[spec_type] = validate(spec_type, read_yaml(data_folder(kind) / name))
    spec: OneFileT = SINGLE_FILES[spec_type]
    return spec


def load(shelf: Shelf[SpecT], name_or_path: str) -> Found[SpecT]:
    """Read an entry by its name, or a user's own file by its path.

    Raises InputError for an unknown or ambiguous name, and for every fault of the file.
    """
    if not is_path(name_or_path):
        return named(shelf, name_or_path)
    path = expanded(name_or_path)
    return of_document(shelf, read_yaml(path), path)


def of_document(shelf: Shelf[SpecT], document: DataFile, path: Path) -> Found[SpecT]:
    """The entry of a user's own file that has already been read. Raises InputError for every fault of the file."""
    spec = validate(shelf.spec, document)
    if shelf.check is not None:
        shelf.check(spec, document)
    return Found(spec, path.stem, path)


def named(shelf: Shelf[SpecT], name: str) -> Found[SpecT]:
    """Read an entry by its name. Raises InputError for an unknown or ambiguous name."""
    entry = find(name, shelf)
    if entry.path.parent == shelf.own_path:
        spec = of_document(shelf, read_yaml(entry.path), entry.path).spec
    else:
        spec = _of_catalogue(shelf.spec, entry.path)  # type: ignore[arg-type]
    return Found(spec, entry.id, entry.path, matched_from(name, entry))


@cache
def _of_catalogue(spec_type: type[SpecT], path: Path) -> SpecT:
    """A file of the catalogue, read once per process. A user's own file is read anew, as it may have changed."""
    return validate(spec_type, read_yaml(path))


def hyphenated(name: str) -> str:
    """Convert a name to lower case and join its words with single hyphens, as in file stems."""
    return _SEPARATORS.sub("-", name.strip().lower()).strip("-")


def is_path(text: str) -> bool:
    """Whether a text means a file: it has a separator or a YAML suffix."""
    return "/" in text or "\\" in text or text.lower().endswith(YAML_SUFFIXES)


def entries(shelf: Shelf[Any]) -> tuple[CatalogEntry, ...]:
    """Read the head lines of every file of a folder."""
    return tuple(_entry(shelf.file(stem)) for stem in shelf.ids)


def find(query: str, shelf: Shelf[Any]) -> CatalogEntry:
    """The file that a name means. Raises InputError if it means none or several."""
    return by_stem(query, shelf) or match(query, entries(shelf), shelf)


def by_stem(query: str, shelf: Shelf[Any]) -> CatalogEntry | None:
    """The file with the name as its stem, found without reading the others."""
    for stem in (query.strip().lower(), hyphenated(query)):
        if _STEM.match(stem) and (path := shelf.file(stem)).is_file():
            return _entry(path)
    return None


def match(query: str, entries: Sequence[CatalogEntry], shelf: Shelf[Any]) -> CatalogEntry:
    """The one entry with a name that equals the query or, if there is none, begins with it.

    Raises InputError that lists the candidates if there are several, or the nearest name if there is none.
    """
    key = shelf.key(query)
    hits = equal(key, entries, shelf.key) or beginning(key, entries, shelf.key)
    return chosen(query, hits, entries, shelf)


def equal(key: str, entries: Sequence[CatalogEntry], reduce: Callable[[str], str]) -> tuple[CatalogEntry, ...]:
    """The entries with a name that `reduce` maps to the key."""
    return tuple(entry for entry in entries if key in map(reduce, entry.names))


def beginning(key: str, entries: Sequence[CatalogEntry], reduce: Callable[[str], str]) -> tuple[CatalogEntry, ...]:
    """The entries with a reduced name that begins with `key`. A key of one or two letters matches nothing."""
    if len(key) < LEAST_BEGINNING:
        return ()
    return tuple(entry for entry in entries if any(reduce(name).startswith(key) for name in entry.names))


def chosen(
    query: str, hits: Sequence[CatalogEntry], entries: Sequence[CatalogEntry], shelf: Shelf[Any]
) -> CatalogEntry:
    """The only hit. Raises InputError for none or several hits; several are listed, the most similar names first if many."""
    if len(hits) == 1:
        return hits[0]
    if not hits:
        raise InputError(unknown(query, entries, shelf))
    ranked = sorted(hits, key=lambda entry: _likeness(query, entry), reverse=True)
    best, second = (_likeness(query, entry) for entry in ranked[:2])
    listed, more = ranked[:MOST_LISTED] if len(hits) > MOST_LISTED else hits, len(hits) - MOST_LISTED
    rest = f" and {more} more (`{shelf.listing}`)" if more > 0 else ""
    allowed = ", ".join(entry.id for entry in listed) + rest
    nearest = ranked[0].id if best > second and not rest else None
    raise InputError(Fault(f"{shelf.label} {query!r} fits several", allowed=allowed, nearest=nearest))


def _likeness(query: str, entry: CatalogEntry) -> tuple[bool, float]:
    """Similarity of a query to the most similar name of an entry.

    Names in which no digit or dot follows the query rank first: for `llama3`, llama-3 ranks before llama-3.1.
    """
    word = hyphenated(query)
    ends = re.compile("-?".join(map(re.escape, word.replace("-", ""))) + r"(?![\d.])")
    names = [hyphenated(name) for name in entry.names]
    return max((bool(ends.match(name)), SequenceMatcher(None, word, name).ratio()) for name in names)


def unknown(query: str, entries: Sequence[CatalogEntry], shelf: Shelf[Any]) -> Fault:
    """The fault of an unknown name. It says what is known about the name, or suggests the nearest one and the listing command.

    If the query is an existing file, the fault suggests its path. Names with other numbers are never suggested, because another
    number means another card or model (H800 is not a misspelt H200).
    """
    allowed = f"a name that `{shelf.listing}` shows, or the path of a file"
    from sizing.specs.facts import NotModelled

    facts = only(NotModelled)
    other = facts.of(query) if shelf.kind == "hardware_profiles" or query.lower().endswith("gguf") else None
    if other is not None:
        stands = "" if other.nearest is None else f"; nearest: {other.nearest}"
        return Fault(f"{query!r} is not modelled: {other.what}; modelled are {facts.modelled}{stands}", allowed=allowed)
    if is_file(expanded(query)):
        message = f"{query!r} is no {shelf.label} known by name, and a file is named by its path"
        return Fault(message, allowed=f"./{query}")
    names = [name for entry in entries for name in entry.names if _numbers(name) == _numbers(query)]
    with_words = sorted((e for e in entries if _has_words(query, e)), key=lambda e: _likeness(query, e), reverse=True)
    within = [name for name in names if hyphenated(name) in hyphenated(query).split("-")]
    some = " or ".join(within[-1:] or (entry.id for entry in with_words[:MOST_LIKELY]))
    likely = nearest(query, names) or some or None
    return Fault(f"unknown {shelf.label} {query!r}", allowed=allowed, nearest=likely)


def _has_words(query: str, entry: CatalogEntry) -> bool:
    """Whether each word of a query with several words begins some word in one of the entry's names."""
    words = hyphenated(query).split("-")
    parts = (hyphenated(name).split("-") for name in entry.names)
    return len(words) > 1 and any(all(any(part.startswith(word) for part in of) for word in words) for of in parts)


def _numbers(name: str) -> list[str]:
    """The numbers in a name, each with the letter before it. They distinguish hardware and models."""
    return re.findall(r"[a-z]?[0-9]+", hyphenated(name).replace("-", ""))


def matched_from(query: str, entry: CatalogEntry) -> str | None:
    """The name as written, or None if it is the entry's own id or name."""
    return None if hyphenated(query) in map(hyphenated, (entry.id, entry.name)) else query


def _entry(path: Path) -> CatalogEntry:
    """Read name and aliases from the first two lines of a profile that are not comments."""
    with path.open(encoding="utf-8", errors="replace") as stream:
        lines = (line for line in stream if not line.startswith("#"))
        parts = (line.partition(":") for line in islice(lines, 2))
        head = {key.strip(): value.strip() for key, _, value in parts}
    name = next(_listed(head.get("name", "")), path.stem)
    return CatalogEntry(path.stem, path, name, tuple(_listed(head.get("aliases", ""))))


def _listed(text: str) -> Iterator[str]:
    for groups in _LISTED.findall(text):
        word = "".join(groups).strip()
        if word:
            yield word
