"""Owned servers: ready ones by name, a user's own by path, and the numbers that stand in for what a file leaves out."""

from __future__ import annotations

from typing import NamedTuple

from sizing.catalog.files import read_yaml, validate
from sizing.catalog.gpus import load_gpu
from sizing.catalog.names import Found, Shelf, find, ids, is_path, matched_from
from sizing.catalog.paths import expanded
from sizing.errors import Fault, InputError
from sizing.specs.gpu import Gpu
from sizing.specs.server import NUMBERS, Basis, Server

SHELF = Shelf("server", "hardware_profiles", "servers", "llmsize cost --help")


class Stated(NamedTuple):
    """A number of a server with how it is known."""

    value: float
    basis: Basis


class Resolved(NamedTuple):
    """A server for one type of GPU with every number filled in that anything states; `title` is what to call it."""

    title: str
    gpu_id: str
    numbers: dict[str, Stated]

    def value(self, name: str) -> float:
        """Return a number that every server has."""
        return self.numbers[name].value


def server_names() -> tuple[str, ...]:
    """Return the names (file stems) of all ready servers, sorted."""
    return ids(SHELF)


def load_server(name_or_path: str) -> Found[Server]:
    """Return a ready server by name (`hgx-h100`, `HGX H100`) or a user's own by the path of its file.

    Raises InputError for an unknown or ambiguous name, for every fault of the file, and for GPUs in it that are not known.
    """
    if is_path(name_or_path):
        path = expanded(name_or_path)
        document = read_yaml(path)
        spec = validate(Server, document)
        if spec.gpu is None:
            return Found(spec, path.stem, path)
        try:
            gpu_id = load_gpu(spec.gpu).id
        except InputError as error:
            file, line, name, _ = document.place(("gpu",))
            raise InputError(
                Fault(fault.message, file, line, name, fault.allowed, fault.nearest) for fault in error.faults
            ) from None
        return Found(spec.model_copy(update={"gpu": gpu_id}), path.stem, path)
    entry = find(name_or_path, SHELF)
    return Found(validate(Server, read_yaml(entry.path)), entry.id, entry.path, matched_from(name_or_path, entry))


def load_defaults() -> Found[Server]:
    """Return what stands in for numbers that nothing else states."""
    path = SHELF.path / "_defaults.yaml"
    return Found(validate(Server, read_yaml(path)), path.stem, path)


def ready_for(gpu_id: str) -> Found[Server] | None:
    """Return the ready server with GPUs of a type, that of the newest price where there are several; None for none."""
    fitting = [found for found in map(load_server, server_names()) if found.spec.gpu == gpu_id]
    return max(fitting, key=lambda found: found.spec.sources["price_usd"].date, default=None)


def resolve(own: Found[Server], gpu_id: str, gpu: Gpu) -> Resolved:
    """Fill in what a server leaves out for GPUs of a type: from the ready server of that type, then from the defaults.

    Raises InputError for a server of other GPUs, or one whose price nothing states.
    """
    file = str(own.path)
    if own.spec.gpu is not None and own.spec.gpu != gpu_id:
        raise InputError(
            Fault(f"holds {own.spec.gpu} GPUs, not {gpu_id}", file, field="gpu", allowed=f"-g {own.spec.gpu}")
        )
    ready, defaults = ready_for(gpu_id), load_defaults()
    numbers = {}
    for name in NUMBERS:
        sheets = [own.spec, *([ready.spec] if ready is not None else []), defaults.spec]
        stated = next((sheet for sheet in sheets if getattr(sheet, name) is not None), None)
        if stated is not None:
            basis = stated.sources.get(name) or Basis(
                kind="assumed", source=f"as stated in {own.path.name}", date="as asked"
            )
            numbers[name] = Stated(float(getattr(stated, name)), basis)
    if "gpus" not in numbers:
        sheet = gpu.datasheet
        numbers["gpus"] = Stated(
            float(sheet.node.gpus), Basis(kind="datasheet", source="; ".join(sheet.sources), date=sheet.date)
        )
    if "price_usd" not in numbers:
        known = ", ".join(server_names())
        message = f"no price of a server with {gpu.name} is known"
        raise InputError(Fault(message, file, field="price_usd", allowed=f"price_usd: in the file; known are {known}"))
    if numbers["residual_usd"].value > numbers["price_usd"].value:
        most = f"at most the price, {numbers['price_usd'].value:,.0f}"
        raise InputError(Fault("is more than the server costs", file, field="residual_usd", allowed=most))
    return Resolved(own.spec.name or own.path.name, gpu_id, numbers)
