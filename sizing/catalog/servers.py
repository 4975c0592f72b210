"""Owned servers: ready ones by name, a user's own by path, and default numbers for fields that a file leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sizing.catalog.files import expanded, read_yaml, validate
from sizing.catalog.profiles import load_gpu
from sizing.catalog.shelf import Shelf, is_path, named
from sizing.specs.errors import InputError, placed
from sizing.specs.gpu import Gpu
from sizing.specs.prices import NUMBERS, OF_THE_SIZE, Basis, Server

SHELF = Shelf(Server, "server", "hardware_profiles", "servers", "llmsize cost --help", own="servers")


# Bounds on a server's price per GPU, in $. Outside, the price is in thousands or cents, or is for a server of another size.
LEAST_USD_PER_GPU, MOST_USD_PER_GPU = 250.0, 1e6


class Stated(NamedTuple):
    """A number of a server and its basis. File and line are set if the user's own file states it."""

    value: float
    basis: Basis
    file: str | None = None
    line: int | None = None


class OwnFile(NamedTuple):
    """A server as a user's own or a ready file states it, with the lines of its fields. `id` is the file's stem."""

    spec: Server
    id: str
    path: Path
    lines: dict[str, int | None]

    @property
    def title(self) -> str:
        """The server's name, or its file name if that looks like a name (a pipe's does not)."""
        return self.spec.name or (self.path.name if self.path.suffix else "unnamed")


class CompleteServer(NamedTuple):
    """A server for one type of GPU with all numbers, stated or default. `title` is its name in reports."""

    title: str
    gpu_id: str
    numbers: dict[str, Stated]

    def value(self, name: str) -> float:
        """The value of a number that every server has."""
        return self.numbers[name].value


def load_server(name_or_path: str) -> OwnFile:
    """A ready server by name (`hgx-h100`, `HGX H100`) or a user's own by the path of its file.

    Raises InputError for an unknown or ambiguous name, for every fault of the file, and for unknown GPUs in it.
    """
    if is_path(name_or_path):
        path = expanded(name_or_path)
        document = read_yaml(path)
        spec = validate(Server, document)
        lines = {field: document.place((field,))[1] for field in spec.model_fields_set}
        if spec.gpu is None:
            return OwnFile(spec, path.stem, path, lines)
        with placed(lambda fault: document.fault(("gpu",), fault.message, fault.allowed, fault.nearest, fault.remedy)):
            gpu_id = load_gpu(spec.gpu).id
        return OwnFile(spec.model_copy(update={"gpu": gpu_id}), path.stem, path, lines)
    found = named(SHELF, name_or_path)
    return OwnFile(found.spec, found.id, found.path, {})


def load_defaults() -> Server:
    """The default numbers of a server."""
    return validate(Server, read_yaml(SHELF.path / "_defaults.yaml"))


def ready_for(gpu_id: str) -> OwnFile | None:
    """The ready server with GPUs of a type, the one with the newest price if there are several; None without one."""
    fitting = [found for found in map(load_server, SHELF.ids) if found.spec.gpu == gpu_id]
    return max(fitting, key=lambda found: found.spec.sources["price_usd"].date, default=None)


def complete_server(own: OwnFile, gpu_id: str, gpu: Gpu) -> CompleteServer:
    """Fill in the missing fields of a server with GPUs of a type: from the ready server of that type, then from the defaults.

    Price and power depend on the number of GPUs, so they are not taken from a ready server of another size. Raises InputError for
    a server with other GPUs, for a missing price, and for an implausible price.
    """
    file = str(own.path)
    if own.spec.gpu is not None and own.spec.gpu != gpu_id:
        message, allowed = (
            f"the server holds {own.spec.gpu} GPUs, not {gpu_id}",
            f"-g {own.spec.gpu}, or a file with your price of a server of {gpu_id}",
        )
        raise InputError(message, file=file, line=own.lines.get("gpu"), field="gpu", allowed=allowed)
    numbers = _numbers(own, ready_for(gpu_id))
    if "gpus" not in numbers:
        sheet = gpu.datasheet
        basis = Basis(kind="datasheet", source="; ".join(sheet.sources), date=sheet.date)
        numbers["gpus"] = Stated(float(sheet.node.gpus), basis)
    if "price_usd" not in numbers:
        known = ", ".join(SHELF.ids)
        message = f"no price of a server with {numbers['gpus'].value:.0f} x {gpu.name} is known"
        raise InputError(message, file=file, field="price_usd", allowed=f"price_usd: in the file; known are {known}")
    _check_price(own, numbers)
    return CompleteServer(own.title, gpu_id, numbers)


def _numbers(file: OwnFile, ready: OwnFile | None) -> dict[str, Stated]:
    """Each number from the first source that states it: the server, the ready server with its GPUs, the defaults."""
    defaults = load_defaults()
    other_size = ready is not None and file.spec.gpus not in (None, ready.spec.gpus)
    numbers = {}
    for name in NUMBERS:
        apart = ready is None or (other_size and name in OF_THE_SIZE)
        sheets = [file.spec, *([ready.spec] if ready is not None and not apart else []), defaults]
        stated = next((sheet for sheet in sheets if getattr(sheet, name) is not None), None)
        if stated is None:
            continue
        basis = stated.sources.get(name) or Basis(kind="assumed", source=f"as stated in {file.title}", date="as asked")
        found = Stated(float(getattr(stated, name)), basis)
        if stated is file.spec:
            found = found._replace(file=str(file.path), line=file.lines.get(name))
        numbers[name] = found
    return numbers


def _check_price(own: OwnFile, numbers: dict[str, Stated]) -> None:
    """Raise InputError for a price implausible for the server's number of GPUs, and for a residual value above it."""
    file, price, residual = str(own.path), numbers["price_usd"], numbers["residual_usd"]
    gpus = numbers["gpus"].value
    least, most = LEAST_USD_PER_GPU * gpus, MOST_USD_PER_GPU * gpus
    if not least <= price.value <= most:
        message = f"${price.value:,.0f} is no price of a server of {gpus:.0f} GPUs: it is in $, for the whole server"
        raise InputError(message, file=file, line=price.line, field="price_usd", allowed=f"{least:,.0f} to {most:,.0f}")
    if residual.value > price.value:
        message, allowed = "is more than the server costs", f"at most the price, {price.value:,.0f}"
        raise InputError(message, file=file, line=residual.line, field="residual_usd", allowed=allowed)
