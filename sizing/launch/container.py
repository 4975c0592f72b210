"""A container that starts an engine, as every kind of file states it, and the cards of its server that it uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sizing.formats.words import plural
from sizing.launch.documents import SERVICES
from sizing.launch.script_text import is_variable
from sizing.launch.shell import ShellCommand
from sizing.launch.terms import Word
from sizing.specs.errors import Fault, FieldPath, InputError
from sizing.specs.launch import LaunchFacts

HELD = ("model", "precision")  # what labels and comments say of a checkpoint whose name does not


class Card(NamedTuple):
    """A card that a container names, and its line."""

    id: str
    line: int | None = None


@dataclass(slots=True)
class Container:
    """What a manifest states about one container: its command and its surroundings."""

    name: str
    path: tuple[str, ...]
    words: tuple[Word, ...] = ()
    image: str = ""
    engine: str | None = None  # with its version, from a comment
    keyed: bool = False
    model: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    replicas: int | None = None
    gpus: int | None = None
    slice_: str | None = None  # the part of a card that it requests
    doubt: str | None = None  # why it may not get its GPUs
    pods: int = 1  # above one if a group of pods starts a replica
    at: FieldPath = ()
    pod: int | None = None  # line of the owner of its pod's containers
    gpus_beside: dict[FieldPath, int] = field(default_factory=dict)  # of its pod's other containers, by their paths
    gpus_before: int = 0  # the most that one of its initContainers requests
    gpus_of_others: int | None = None  # of each further pod of its group, where they differ from its own
    drafts: Word | None = None  # its speculative decoding with the acceptance, which no flag states
    holds: dict[str, str] = field(default_factory=dict)  # model and precision of its checkpoint
    cards: tuple[Card, ...] = ()  # those that it names of its server
    whole: bool = False  # whether it takes all cards
    requested: bool = False  # whether it asks Docker for the cards
    profiles: frozenset[str] = frozenset()  # with which Compose starts it; without one it always starts
    mounts: dict[str, str] = field(default_factory=dict)  # sources of what `docker run` mounts, by their places
    labels: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    command: ShellCommand | None = None  # of a script
    entered: bool = False  # whether its image's own command takes its words
    file: str = ""  # the manifest
    lines: dict[str, int | None] = field(default_factory=dict)  # of its fields
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(
        default_factory=list
    )  # of its numbers; one of `replicas` counts only if the user does not state them


ALL_DEVICES = ("all", "none", "void")  # values of a device variable that list no devices


class Needed(NamedTuple):
    """The GPUs on which a command runs, its replicas (ranks that share nothing), and its nodes."""

    gpus: int
    replicas: int
    nodes: int


class OfReplica(NamedTuple):
    """The GPUs of one replica: those that its containers reserve, and those that its command sees; None where nothing states them."""

    reserved: int | None
    seen: int | None


class CardUse(NamedTuple):
    """The `cards` of a server on which a container's engine runs, and where its file states them."""

    container: Container
    cards: tuple[str, ...]


def is_local(container: Container) -> bool:
    """Whether a container is of a Compose file or a script, which run on one server; a cluster finds cards itself."""
    return container.path[:1] in ((), (SERVICES,))


def names_cards(container: Container, facts: LaunchFacts) -> bool:
    """Whether a container names the cards of its server, itself or by a variable."""
    return bool(container.cards or container.variables.keys() & set(facts.visible_devices))


def visible(container: Container, facts: LaunchFacts, file: str) -> tuple[str, ...] | None:
    """The cards that a command sees, in order; None where nothing limits them. Their numbers are those of the server where
    it is known, else those of the container.

    Raises InputError for a variable that numbers more cards than the container has.
    """
    held = tuple(card.id for card in container.cards) or None
    if held is None and container.gpus is not None:
        held = tuple(map(str, range(container.gpus)))
    applied = None  # ROCm reads two of the variables in the same way
    for name in facts.visible_devices:
        text = container.variables.get(name, "").strip()
        given = name == facts.device_request and (container.requested or container.gpus is not None)
        if text.lower() in ("", *ALL_DEVICES) or is_variable(text) or text == applied or given:
            continue
        applied, listed = text, tuple(dict.fromkeys(each.strip() for each in text.split(",")))
        beyond = [each for each in listed if held is not None and each.isdecimal() and int(each) >= len(held)]
        if held is not None and beyond:
            what = f"numbers card {beyond[0]}, and its container has {len(held)}, numbered from 0"
            allowed = ", ".join(map(str, range(len(held))))
            raise InputError(what, file=file, line=container.lines.get("command"), field=name, allowed=allowed)
        held = tuple(held[int(each)] if held is not None and each.isdecimal() else each for each in listed)
    return held


def gpus_of(container: Container, seen: Sequence[str] | None, needed: Needed, file: str) -> OfReplica:
    """The GPUs of each replica that a container's command starts. A cluster gives a pod those of all its containers.

    Raises InputError for less than one GPU a replica.
    """
    own = (None if seen is None else len(seen)) if is_local(container) or container.gpus is None else container.gpus
    if own is None:
        return OfReplica(None, None)
    first = max(own + sum(container.gpus_beside.values()), container.gpus_before)
    others = first if container.gpus_of_others is None else container.gpus_of_others
    reserved = first + (needed.nodes - 1) * others
    sees = None if seen is None else min(len(seen) * needed.nodes, reserved)
    if reserved < needed.replicas:
        what = f"starts {needed.replicas} replicas, and has {plural(reserved, 'GPU')}"
        raise InputError(what, file=file, line=container.lines.get("command"), field=container.name)

    def each(gpus: int) -> int:
        """Too few for a replica where the command has too few, more where it has more."""
        return -(-gpus // needed.replicas) if gpus > needed.gpus else gpus // needed.replicas

    return OfReplica(each(reserved), None if sees is None else each(sees))


def use_of(container: Container, seen: Sequence[str] | None, gpus: int, facts: LaunchFacts) -> CardUse:
    """The cards on which a command runs that takes `gpus` of those it sees: the first ones. None of them if its file states none."""
    # commands of a script may be for several servers, except for containers that it starts
    counted = (container.path or container.image) and (container.whole or container.gpus)
    if not is_local(container) or not (names_cards(container, facts) or counted):
        return CardUse(container, ())
    known = tuple(map(str, range(gpus))) if seen is None else tuple(seen[:gpus])
    return CardUse(container, tuple(card for card in known if not is_variable(card)))


def shared(uses: Sequence[CardUse], file: str) -> Iterator[Fault]:
    """Yield one fault for each group of containers of a server that would run on the same cards, and of each service's replicas."""
    for container, cards in uses:
        ids = [card.id for card in container.cards]
        twice = [card for at, card in enumerate(container.cards) if card.id in ids[:at]]
        for card in () if any(is_variable(each.id) for each in twice) else twice:
            yield Fault(f"{container.name} names card {card.id} twice", file, card.line, "device_ids", "each card once")
        if cards and (container.replicas or 1) > 1 and container.path:
            what = f"Docker gives all {container.replicas} replicas of {container.name} the same {_listed(cards)}"
            line = container.lines.get("replicas") or container.lines.get("command")
            yield Fault(what, file, line, "replicas", "a service with cards of its own for each replica")
    groups: dict[tuple[int, ...], list[str]] = {}
    for id_ in dict.fromkeys(each for use in uses for each in use.cards):
        users = [number for number, use in enumerate(uses) if id_ in use.cards]
        for together in _of_servers(users, uses):
            groups.setdefault(together, []).append(id_)
    for numbers, cards_ in groups.items():
        *others, last = _names(uses[number].container for number in numbers)
        yield _fault(f"{', '.join(others)} and {last}", cards_, uses[numbers[1]].container, file)


def of_profiles(uses: Sequence[CardUse]) -> str | None:
    """The assumption on services of Compose that name the same cards and never start together; None without them."""
    for at, use in enumerate(uses):
        for other in uses[at + 1 :]:
            own, others = use.container.profiles, other.container.profiles
            both = [card for card in use.cards if card in other.cards]
            if both and own and others and not own & others:
                who = f"{use.container.name} and {other.container.name}"
                return f"{who} have profiles that differ, and the same {_listed(both)}: each profile is a server of its own"
    return None


def _names(containers: Iterable[Container]) -> list[str]:
    """The names of containers; commands of a script, which may have one name, are told apart by their lines."""
    return [each.name if each.path else f"the command of line {each.lines.get('command')}" for each in containers]


def _of_servers(users: Sequence[int], uses: Sequence[CardUse]) -> Iterator[tuple[int, ...]]:
    """Yield those of the containers that use a card together, server by server: Compose starts the services of one profile."""
    profiles = {profile for number in users for profile in uses[number].container.profiles}
    found = {
        tuple(number for number in users if not (own := uses[number].container.profiles) or profile in own)
        for profile in (profiles or {""})
    }
    yield from sorted(each for each in found if len(each) > 1)


def _fault(who: str, cards: Sequence[str], container: Container, file: str) -> Fault:
    line = next((card.line for card in container.cards if card.id in cards and card.line), None)
    field, line = (None, container.lines.get("command")) if line is None else ("device_ids", line)
    return Fault(f"{who} would run on the same {_listed(cards)}", file, line, field, "cards of its own for each")


def _listed(cards: Sequence[str]) -> str:
    return f"card{'s' * (len(cards) > 1)}: {', '.join(cards)}"
