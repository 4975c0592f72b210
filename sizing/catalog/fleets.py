"""Fleets: several workloads in one file, ready ones by name or a user's own by path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sizing.catalog.files import Document, FieldPath, SpecT, read_yaml
from sizing.catalog.gpus import load_gpu
from sizing.catalog.names import YAML_SUFFIXES, Found, ids, is_path
from sizing.catalog.paths import exists, expanded
from sizing.catalog.profiles import load_profile
from sizing.catalog.workloads import FLEETS, load_workload, with_paths
from sizing.errors import Fault, InputError
from sizing.specs.fleet import Fleet, Member
from sizing.specs.workload import Workload

NOT_ONE = ("all",)  # words for several types of GPU


class FoundMember(NamedTuple):
    """A workload of a fleet with its name there, and the file and line that it stands in."""

    name: str
    member: Member
    workload: Found[Workload]
    file: str
    line: int | None
    written_out: bool

    def placed(self, fault: Fault, document: Document, index: int) -> Fault:
        """Return a fault with its place in the fleet's file, unless it has one in a file of its own."""
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
        return Fault(fault.message, self.file, line, field, fault.allowed, fault.nearest)


class FoundFleet(NamedTuple):
    """A fleet, its file, and its workloads looked up."""

    spec: Fleet
    id: str
    document: Document
    members: tuple[FoundMember, ...]


def fleet_names() -> tuple[str, ...]:
    """Return the names (file stems) of all ready fleets, sorted."""
    return ids(FLEETS)


def find_fleet(path_or_name: str) -> FoundFleet | None:
    """Return the fleet that a path or a name means, None where it means something else, as a workload.

    A file is a fleet that has the key `fleet`. Raises InputError for every fault of it and of the workloads in it.
    """
    path = _path_of(path_or_name)
    if path is None:
        return None
    document = read_yaml(path)
    if "fleet" not in document.data:
        return None
    spec = _validated(Fleet, document, document.data, ())
    faults: list[Fault] = []
    members = []
    for index, member in enumerate(spec.fleet):
        try:
            members.append(_member(index, member, document, path))
        except InputError as error:
            faults += error.faults
    if faults:  # without any, what members name is looked up with the rest of their questions
        faults += [fault for index, member in enumerate(spec.fleet) for fault in _unknown(index, member, document)]
        raise InputError(faults)
    return FoundFleet(spec, path.stem, document, _named_apart(members, document))


def _path_of(path_or_name: str) -> Path | None:
    """Return the file to look at: a path that is there, else a ready fleet; a pipe is left to be read as a workload."""
    path = expanded(path_or_name)
    if is_path(path_or_name) and path.suffix.lower() in YAML_SUFFIXES and exists(path):
        return path
    stem = path.stem if path.suffix.lower() in YAML_SUFFIXES else path_or_name.strip().lower()
    return FLEETS.path / f"{stem}.yaml" if path.name == path_or_name and stem in fleet_names() else None


def _member(index: int, member: Member, document: Document, path: Path) -> FoundMember:
    """Look up one workload: written out here, beside the fleet's file, or as anywhere else."""
    stated = member.workload
    file, line, _, _ = document.place(("fleet", index, "workload"))
    if isinstance(stated, dict):
        spec = with_paths(_validated(Workload, document, stated, ("fleet", index, "workload")), path.parent)
        name = member.name or spec.name or f"workload-{index + 1}"
        return FoundMember(name, member, Found(spec, name, path), file, line, True)
    beside = path.parent / expanded(stated)
    if _is_fleet(str(beside) if is_path(stated) and exists(beside) else stated):
        field = f"fleet[{index}].workload"
        raise InputError(
            Fault(f"{stated!r} is a fleet itself", file, line, field, allowed="a workload: fleets do not nest")
        )
    try:
        found = load_workload(str(beside) if is_path(stated) and exists(beside) else stated)
    except InputError as error:
        raise InputError(
            fault if fault.file is not None and fault.line is not None else _in_fleet(fault, file, line, index)
            for fault in error.faults
        ) from None
    return FoundMember(member.name or found.id, member, found, file, line, False)


def _is_fleet(path_or_name: str) -> bool:
    """Tell whether a member's workload is a file of several."""
    path = _path_of(path_or_name)
    try:
        return path is not None and "fleet" in read_yaml(path).data
    except InputError:  # said of the workload that it is read as
        return False


def _unknown(index: int, member: Member, document: Document) -> list[Fault]:
    """Return the faults of a member's GPU and profile where they are no names that are known, at their lines."""
    faults: list[Fault] = []
    looked_up: tuple[tuple[str, Any, Callable[[str], Any]], ...] = (
        ("gpu", member.gpu, load_gpu),
        ("profile", member.profile, load_profile),
    )
    for key, stated, load in looked_up:
        if not isinstance(stated, str) or stated.strip().lower() in NOT_ONE:
            continue
        try:
            for name in stated.split(",") if key == "gpu" else (stated,):
                load(name.strip())
        except InputError as error:
            file, line, field, _ = document.place(("fleet", index, key))
            own = [fault for fault in error.faults if fault.file is None]
            faults += [replace(fault, file=file, line=line, field=field) for fault in own]
    return faults


def _in_fleet(fault: Fault, file: str, line: int | None, index: int) -> Fault:
    where = f"{fault.file}: " if fault.file is not None else ""
    return Fault(f"{where}{fault.message}", file, line, f"fleet[{index}].workload", fault.allowed, fault.nearest)


def _named_apart(members: list[FoundMember], document: Document) -> tuple[FoundMember, ...]:
    """Return the members. Raises InputError where two go by one name."""
    seen: dict[str, int] = {}
    for index, member in enumerate(members):
        if member.name in seen:
            raise InputError(
                Fault(
                    f"{member.name!r} is the name of two workloads",
                    document.file,
                    member.line,
                    f"fleet[{index}].name",
                    allowed="a name of its own",
                )
            )
        seen[member.name] = index
    return tuple(members)


def _validated(spec_type: type[SpecT], document: Document, data: Any, prefix: FieldPath) -> SpecT:
    """Turn a part of a document into a spec; raises InputError with every fault at its line."""
    from pydantic import ValidationError

    try:
        return spec_type.model_validate(data)
    except ValidationError as error:
        from sizing.catalog.faults import faults_of

        def place(path: FieldPath) -> Any:
            return document.place((*prefix, *path))

        raise InputError(faults_of(error, spec_type, data, place)) from None
