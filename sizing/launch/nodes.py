"""The mappings of a YAML file with the values around them, and how their values are reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sizing.catalog.yaml import Spot, YamlDocument, documents
from sizing.specs.errors import FieldPath, InputError

SERVICES = "services"  # in Compose
MERGE = "<<"  # in YAML
MOST_NODES = 200_000  # nodes in a file, with aliases followed


class ManifestNode(NamedTuple):
    """A mapping in a manifest, with the values around it: the outermost first, the mapping itself last."""

    above: tuple[object, ...]
    path: FieldPath
    document: YamlDocument
    file: str

    @property
    def own(self) -> Mapping[str, object]:
        """The mapping itself."""
        return as_mapping(self.above[-1])

    @property
    def of_compose(self) -> bool:
        """Whether it is part of a file of Docker Compose."""
        return self.path[:1] == (SERVICES,) and value_at(self.document.data, "kind") is None

    @property
    def holders(self) -> list[Mapping[str, object]]:
        """The mapping itself, then the mappings around it, nearest first."""
        return [each for each in reversed(self.above) if isinstance(each, dict)]

    def line(self, *steps: str | int) -> int | None:
        """The line of the value at `steps` below it, or of the nearest value around that."""
        return line_of(self.document, (*self.path, *steps))

    def nearest(self, *paths: Sequence[str]) -> Iterator[tuple[object, int | None, str]]:
        """Yield the plain values at `paths` of the mapping and those around it, nearest first, with line and path in words."""
        for depth in range(len(self.above), 0, -1):
            for steps in paths:
                value = value_at(self.above[depth - 1], *steps)
                if value is not None and not isinstance(value, (dict, list)):
                    yield value, line_of(self.document, (*self.path[: depth - 1], *steps)), ".".join(steps)


def manifests_of(document: YamlDocument) -> Iterator[YamlDocument]:
    """Yield a document, or the manifests of a List, each as a document of its own."""
    items = value_at(document.data, "items")
    if value_at(document.data, "kind") != "List" or not isinstance(items, list):
        yield document
        return
    spots: list[dict[FieldPath, Spot]] = [{} for _ in items]
    for path, spot in document.spots.items():
        if len(path) > 1 and path[0] == "items" and isinstance(path[1], int):
            spots[path[1]][path[2:]] = spot
    for item, places in zip(items, spots, strict=True):
        yield document._replace(data=item, spots=places)


def held(document: YamlDocument, file: str, *steps: str) -> Iterator[YamlDocument]:
    """Yield the documents in a text that a document holds at `steps`, with their lines in the file."""
    text, spot = value_at(document.data, *steps), document.spots.get(steps)
    for each in documents(text, file) if isinstance(text, str) else ():
        before = spot.line if spot else 0
        spots = {path: place._replace(line=place.line + before) for path, place in each.spots.items()}
        yield each._replace(spots=spots)


def merged(document: YamlDocument) -> YamlDocument:
    """A document with the keys that its merge keys (`<<`) add to mappings. A mapping's own keys take precedence."""
    return document._replace(data=_merged(document.data, {}))


def _merged(value: object, done: dict[int, object]) -> object:
    """A value with merge keys applied; `done` holds each shared value once, by its identity."""
    if not isinstance(value, (dict, list)):
        return value
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, list):
        items: list[object] = []
        done[id(value)] = items
        items += (_merged(each, done) for each in value)
        return items
    found: dict[str, object] = {}
    done[id(value)] = found
    added = value.get(MERGE)
    for each in reversed(added if isinstance(added, list) else [added]):
        found |= as_mapping(_merged(each, done))
    found |= {key: _merged(each, done) for key, each in value.items() if key != MERGE}
    return found


def nodes(document: YamlDocument, file: str) -> Iterator[ManifestNode]:
    """Yield each mapping in a document. Raises InputError for far too many."""
    left: list[tuple[tuple[object, ...], FieldPath]] = [((document.data,), ())]
    seen = 0
    while left:
        above, path = left.pop()
        seen += 1
        if seen > MOST_NODES:
            raise InputError(f"has more than {MOST_NODES:,} entries", file=file)
        if isinstance(above[-1], dict):
            yield ManifestNode(above, path, document, file)
        left += reversed(
            [((*above, value), (*path, key)) for key, value in _items(above[-1]) if isinstance(value, (dict, list))]
        )


def _items(node: object) -> Iterator[tuple[str | int, object]]:
    yield from node.items() if isinstance(node, dict) else enumerate(as_list(node))


def as_mapping(value: object) -> dict[str, object]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def value_at(node: object, *steps: str) -> object:
    """The value at the keys `steps` of nested mappings; None without one."""
    for step in steps:
        node = as_mapping(node).get(step)
    return node


def line_of(document: YamlDocument, path: FieldPath) -> int | None:
    """The line of the value at a path, or of the nearest value around it; None without one."""
    around = (document.spots.get(path[:end]) for end in range(len(path), -1, -1))
    return next((spot.line for spot in around if spot is not None), None)
