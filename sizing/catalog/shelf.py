"""Names: what users call a GPU, an engine, a model or a workload, and which file of the catalogue is meant.

A name is compared without case, spaces, hyphens and underscores. The stem of a file is opened directly; any
other name costs a look at the first two lines (name and aliases) of each file of one folder, never more.

What is known from published benchmarks: how they were run, how constants are refitted from them, how far off they are.

What is published of optimisations, and the methods of speculative decoding by name.

Pages on optimisations, by name.

What is assumed of the hand-over between the pools of a disaggregated deployment.

How load and replicas go over time: profiles by hour, ready ones by name or a user's own by path, and how scaling goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from sizing.catalog.files import data_folder, read_yaml, validate
from sizing.catalog.paths import expanded
from sizing.specs.bands import Bands
from sizing.specs.calibration import Calibration
from sizing.specs.demand import Profile, Scaling
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.facts import Facts, Method, Topic
from sizing.specs.measurements import Conventions
from sizing.specs.optimisations import HandOver

T_co = TypeVar("T_co", covariant=True)

_STEM = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}\Z")
_LISTED = re.compile(r"""\s*(?:'([^']*)'|"([^"]*)"|([^,\[\]]+))""")
_SEPARATORS = re.compile(r"[\s_:-]+")
YAML_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Found(Generic[T_co]):
    """A spec and its file. `id` is the file's stem, `matched_from` what was asked for where it differs."""

    spec: T_co
    id: str
    path: Path
    matched_from: str | None = None


class Entry(NamedTuple):
    """A file of the catalogue by its head lines: stem, display name, other names."""

    id: str
    path: Path
    name: str
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that means this file."""
        return (self.id, self.name, *self.aliases)


class Shelf(NamedTuple):
    """One folder of the catalogue: what its files describe, where it lies, and the command that lists it.

    `dots_matter` keeps dots in comparisons: Llama 3.1 is not Llama 31, but a GPU has no such names.
    """

    label: str
    kind: str
    folder: str
    listing: str
    dots_matter: bool = False

    @property
    def path(self) -> Path:
        """The folder itself."""
        return data_folder(self.kind) / self.folder

    def key(self, name: str) -> str:
        """Reduce a name to what counts in a comparison."""
        dropped = "-" if self.dots_matter else "-."
        return hyphenated(name).translate(str.maketrans("", "", dropped))


def hyphenated(name: str) -> str:
    """Lower a name and join its words by single hyphens, the spelling of file stems."""
    return _SEPARATORS.sub("-", name.strip().lower()).strip("-")


def is_path(text: str) -> bool:
    """Tell whether a user means a file: the text has a separator or a YAML suffix."""
    return "/" in text or "\\" in text or text.lower().endswith(YAML_SUFFIXES)


def ids(shelf: Shelf) -> tuple[str, ...]:
    """Return the stems of a folder, sorted; files that begin with an underscore are no entries."""
    return tuple(sorted(path.stem for path in shelf.path.glob("*.yaml") if not path.name.startswith("_")))


def entries(shelf: Shelf) -> tuple[Entry, ...]:
    """Read the head lines of every file of a folder."""
    return tuple(_entry(shelf.path / f"{stem}.yaml") for stem in ids(shelf))


def find(query: str, shelf: Shelf) -> Entry:
    """Return the file that a name means; raises InputError when it means none or several."""
    direct = by_stem(query, shelf)
    return direct or match(query, entries(shelf), shelf)


def by_stem(query: str, shelf: Shelf) -> Entry | None:
    """Return the file whose stem is the name, without looking at the others."""
    for stem in (query.strip().lower(), hyphenated(query)):
        path = shelf.path / f"{stem}.yaml"
        if _STEM.match(stem) and path.is_file():
            return _entry(path)
    return None


def match(query: str, known: Sequence[Entry], shelf: Shelf) -> Entry:
    """Return the one entry that a name means: one of its names exactly, or else the beginning of one.

    Raises InputError that lists the candidates when there are several, or the nearest name when there is
    none.
    """
    key = shelf.key(query)
    hits = equal(key, known, shelf.key) or beginning(key, known, shelf.key)
    return chosen(query, hits, known, shelf)


def equal(key: str, known: Sequence[Entry], reduce: Callable[[str], str]) -> tuple[Entry, ...]:
    """Return the entries one of whose names reduces to the key."""
    return tuple(entry for entry in known if key in map(reduce, entry.names))


def beginning(key: str, known: Sequence[Entry], reduce: Callable[[str], str]) -> tuple[Entry, ...]:
    """Return the entries one of whose names begins with the key."""
    return tuple(entry for entry in known if key and any(reduce(name).startswith(key) for name in entry.names))


def chosen(query: str, hits: Sequence[Entry], known: Sequence[Entry], shelf: Shelf) -> Entry:
    """Return the only hit; raises InputError for none or several."""
    if len(hits) == 1:
        return hits[0]
    if hits:
        listed = ", ".join(entry.id for entry in hits)
        raise InputError(Fault(f"{shelf.label} {query!r} fits several", allowed=listed, nearest=closest(query, hits)))
    raise InputError(unknown(query, known, shelf))


def closest(query: str, hits: Sequence[Entry]) -> str | None:
    """Return the id of the entry one of whose names is most like the query, None where two are equally so."""
    word = hyphenated(query)

    def likeness(entry: Entry) -> float:
        return max(SequenceMatcher(None, word, hyphenated(name)).ratio() for name in entry.names)

    best, second = sorted(((likeness(entry), entry.id) for entry in hits), reverse=True)[:2]
    return best[1] if best[0] > second[0] else None


def unknown(query: str, known: Sequence[Entry], shelf: Shelf) -> Fault:
    """Say that no entry has a name, with the nearest one and the command that lists them all."""
    names = [name for entry in known for name in entry.names]
    return Fault(
        f"unknown {shelf.label} {query!r}",
        allowed=f"a name that `{shelf.listing}` shows, or the path of a file",
        nearest=nearest(query, names),
    )


def matched_from(query: str, entry: Entry) -> str | None:
    """Return what was asked for when it is not simply the entry's own name."""
    return None if hyphenated(query) in map(hyphenated, (entry.id, entry.name)) else query


def _entry(path: Path) -> Entry:
    """Read name and aliases from the first two lines of a profile: a value, and a list on one line."""
    with path.open(encoding="utf-8") as stream:
        head = dict(_head_line(stream.readline()) for _ in range(2))
    name = next(_listed(head.get("name", "")), path.stem)
    return Entry(path.stem, path, name, tuple(_listed(head.get("aliases", ""))))


def _head_line(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()


def _listed(text: str) -> Iterator[str]:
    for groups in _LISTED.findall(text):
        word = "".join(groups).strip()
        if word:
            yield word


@cache
def load_conventions() -> Found[Conventions]:
    """Return how benchmarks were run where their rows leave it unsaid."""
    path = data_folder("workloads") / "_benchmarks.yaml"
    return Found(validate(Conventions, read_yaml(path)), path.stem, path)


@cache
def load_calibration() -> Found[Calibration]:
    """Return what a calibration may change and which rows it learns from."""
    path = data_folder("hardware_profiles") / "_calibration.yaml"
    return Found(validate(Calibration, read_yaml(path)), path.stem, path)


@cache
def load_bands() -> Found[Bands]:
    """Return how far measurements lie from predictions."""
    path = data_folder("hardware_profiles") / "_bands.yaml"
    return Found(validate(Bands, read_yaml(path)), path.stem, path)


@cache
def load_facts() -> Found[Facts]:
    """Return the facts of all optimisations. Read only where one is on."""
    path = data_folder("hardware_profiles") / "_optimisations.yaml"
    return Found(validate(Facts, read_yaml(path)), path.stem, path)


def method_of(name: str, facts: Facts) -> Method:
    """Return a method of speculative decoding by its name or an alias. Raises InputError for an unknown one."""
    for known, method in facts.speculative.items():
        if name in (known, *method.aliases):
            return method
    names = list(facts.speculative)
    raise InputError(
        Fault(
            f"{name!r} is no method of speculative decoding",
            field="optimisations.speculative",
            allowed=", ".join(names),
            nearest=nearest(name, names),
        )
    )


SHELF = Shelf("topic", "workloads", "topics", "llmsize explain")


def topic_names() -> tuple[str, ...]:
    """Return the names of all topics, sorted."""
    return ids(SHELF)


def load_topic(name: str) -> Found[Topic]:
    """Return a topic by name or alias. Raises InputError for an unknown one."""
    entry = find(name, SHELF)
    return Found(validate(Topic, read_yaml(entry.path)), entry.id, entry.path, matched_from(name, entry))


@cache
def load_hand_over() -> Found[HandOver]:
    """Return how a cache goes from one pool to the other. Read only where pools are asked for."""
    path = data_folder("hardware_profiles") / "_disaggregation.yaml"
    return Found(validate(HandOver, read_yaml(path)), path.stem, path)


def profile_names() -> tuple[str, ...]:
    """Return the names (file stems) of all ready profiles, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def load_profile(path_or_name: str) -> Found[Profile]:
    """Return the profile in a file, or the ready one of that name.

    Raises InputError for an unknown name and for every fault of the file.
    """
    if is_path(path_or_name):
        path = expanded(path_or_name)
        return Found(validate(Profile, read_yaml(path)), path.stem, path)
    known, name = profile_names(), hyphenated(path_or_name)
    if name not in known:
        raise InputError(
            Fault(
                f"unknown load profile {path_or_name!r}",
                field="planning.profile",
                allowed=f"{', '.join(known)}, or the path of a file",
                nearest=nearest(name, known),
            )
        )
    path = _folder() / f"{name}.yaml"
    return Found(validate(Profile, read_yaml(path)), name, path)


def load_scaling() -> Found[Scaling]:
    """Return how a service follows its load where nothing else is stated."""
    path = data_folder("workloads") / "_scaling.yaml"
    return Found(validate(Scaling, read_yaml(path)), path.stem, path)


def _folder() -> Path:
    return data_folder("workloads") / "profiles"
