"""Fleets: ready ones by name, a user's own by path, with the workloads of their members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sizing.catalog.files import STDIN, DataFile, exists, expanded, read_yaml, validate
from sizing.catalog.models import load_model
from sizing.catalog.profiles import load_gpu
from sizing.catalog.shelf import YAML_SUFFIXES, Found, is_path
from sizing.catalog.workloads import (
    NO_WORDS,
    LookUp,
    Words,
    fleet_shelf,
    from_folder,
    load_profile,
    load_workload,
    name_faults,
    spelt,
    with_paths,
)
from sizing.specs.errors import Fault, FieldPath, InputError, collected, placed
from sizing.specs.fleet import Fleet, Member
from sizing.specs.workload import Workload

SHELF = fleet_shelf()
NAMED = ("name", "gpu", "profile")  # fields of a member whose value is a name


class FoundMember(NamedTuple):
    """A workload of a fleet with its name in the fleet, and its file and line."""

    name: str
    member: Member
    workload: Found[Workload]
    file: str
    line: int | None
    written_out: bool

    def located(self, fault: Fault, document: DataFile, index: int) -> Fault:
        """The fault with its place in the fleet's file, unless it already has a place in another file."""
        if fault.file is not None and fault.file != self.file:
            return fault
        named = (fault.field or "").removeprefix("--")
        if named in ("gpu", "profile") and getattr(self.member, named) is not None:
            path: FieldPath = ("fleet", index, named)
        elif self.written_out:
            path = ("fleet", index, "workload", *named.split("."))
        else:
            path = ("fleet", index, "workload")
        _, line, _, _ = document.place(path)
        field = ".".join(part for part in (f"fleet[{index}]", named) if part)
        return replace(fault, file=self.file, line=line, field=field)


class FoundFleet(NamedTuple):
    """A fleet, its file, and the workloads that were found. `faults` holds the faults of the others."""

    spec: Fleet
    id: str
    document: DataFile
    members: tuple[FoundMember, ...]
    faults: tuple[Fault, ...] = ()


def find_fleet(path_or_name: str, words: Words = NO_WORDS) -> FoundFleet | None:
    """The fleet that a path or a name means; None if it means something else, such as a workload. `words` are other spellings of keys.

    A file with the key `fleet` is a fleet. Raises InputError for every fault of the file, together with the faults of its
    workloads.
    """
    path = _path_of(path_or_name)
    if path is None:
        return None
    document = read_yaml(path)
    if "fleet" not in document.data:
        return None
    try:
        spec = validate(Fleet, document)
    except InputError as error:
        stated = tuple(_as_stated(document))
        told = dict.fromkeys((*error.faults, *_looked_up(stated, document, path, words)[1]))
        raise InputError(sorted(told, key=lambda fault: fault.line or 0)) from None
    members, faults = _looked_up(tuple(enumerate(spec.fleet)), document, path, words)
    if not faults:
        _check_names(members, document)
    return FoundFleet(spec, path.stem, document, tuple(members), tuple(faults))


def _as_stated(document: DataFile) -> Iterator[tuple[int, Member]]:
    """Yield the members of a faulty fleet, each with its place, as far as they can be looked up."""
    fleet = document.data["fleet"]
    for index, entry in enumerate(fleet if isinstance(fleet, list) else ()):
        if isinstance(entry, dict) and isinstance(entry.get("workload"), (str, dict)):
            name, gpu, profile = (value if isinstance(value := entry.get(key), str) else None for key in NAMED)
            yield index, Member(workload=entry["workload"], name=name, gpu=gpu, profile=profile)


def _looked_up(
    stated: Iterable[tuple[int, Member]], document: DataFile, path: Path, words: Words
) -> tuple[list[FoundMember], list[Fault]]:
    """The workloads of members, and their faults.

    If any member has a fault, the GPUs, profiles and models of all members are checked here too. Otherwise that happens later.
    """
    members, faults, stated = [], list[Fault](), tuple(stated)
    for index, member in stated:
        with collected(faults):
            members.append(_member(index, member, document, path, words))
    if faults:
        faults += name_faults(document, (name for index, member in stated for name in _of_member(index, member)))
    return members, faults


def _path_of(path_or_name: str) -> Path | None:
    """The file to inspect: an existing YAML path or a ready fleet; None for anything else."""
    path = expanded(path_or_name)
    if path_or_name == STDIN:
        return path
    if is_path(path_or_name) and path.suffix.lower() in YAML_SUFFIXES and exists(path):
        return path
    stem = path.stem if path.suffix.lower() in YAML_SUFFIXES else path_or_name.strip().lower()
    return SHELF.file(stem) if path.name == path_or_name and stem in SHELF.ids else None


def _member(index: int, member: Member, document: DataFile, path: Path, words: Words) -> FoundMember:
    """Look up one workload: inline, in the folder of the fleet's file, or by the usual rules."""
    stated = member.workload
    file, line, _, _ = document.place(("fleet", index, "workload"))
    if isinstance(stated, dict):
        spec = with_paths(spelt(document, words, ("fleet", index, "workload"))[1], path.parent)
        name = member.name or spec.name or f"workload-{index + 1}"
        return FoundMember(name, member, Found(spec, name, path), file, line, True)
    name = from_folder(stated, path.parent) if is_path(stated) else stated
    field = f"fleet[{index}].workload"

    def in_fleet(fault: Fault) -> Fault:
        where = f"{fault.file}: " if fault.file is not None else ""
        here = replace(fault, message=f"{where}{fault.message}", file=file, line=line, field=field)
        return fault if fault.file is not None and fault.line is not None else here

    if _is_fleet(name):
        itself = f"{stated!r} is a fleet itself"
        raise InputError(itself, file=file, line=line, field=field, allowed="a workload: fleets do not nest")
    with placed(in_fleet):
        found = load_workload(name, words)
    return FoundMember(member.name or found.id, member, found, file, line, False)


def _is_fleet(path_or_name: str) -> bool:
    """Whether a member's workload is a file with several workloads."""
    path = _path_of(path_or_name)
    try:
        return path is not None and "fleet" in read_yaml(path).data
    except InputError:  # reading it as a workload reports the fault
        return False


def _of_member(index: int, member: Member) -> tuple[LookUp, ...]:
    """The names of a member: its GPU, profile and model."""
    own, at = member.workload if isinstance(member.workload, dict) else {}, ("fleet", index)
    return (
        ((*at, "gpu"), member.gpu, load_gpu),
        ((*at, "profile"), member.profile, load_profile),
        ((*at, "workload", "model"), own.get("model"), load_model),
        ((*at, "workload", "gpu"), own.get("gpu"), load_gpu),
    )


def _check_names(members: Sequence[FoundMember], document: DataFile) -> None:
    """Raise InputError if two members have the same name."""
    names = [member.name for member in members]
    for index, member in enumerate(members):
        if member.name in names[:index]:
            message, field = f"{member.name!r} is the name of two workloads", f"fleet[{index}].name"
            raise InputError(message, file=document.file, line=member.line, field=field, allowed="a name of its own")
