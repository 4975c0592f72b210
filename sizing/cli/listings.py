"""`llmsize gpus`, `models`, `engines`, `workloads`, `prices`: the catalogue, or one entry with its sources."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

Name = Annotated[str | None, typer.Argument(help="Show one entry with its sources; all are listed without it.")]
AsYaml = Annotated[bool, typer.Option("--yaml", help="The file of one entry, to be pasted and edited.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON in place of a table.")]


def _list(title: str, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]], as_json: bool) -> None:
    from sizing.cli.output import write
    from sizing.report.listings import Listing, document_of_list

    write(document_of_list(Listing(title, columns, tuple(rows))), "json" if as_json else "table")


def _printed(name: str | None, path: Path | None, *, as_json: bool, is_whole: bool = True) -> None:
    """Print the file of an entry without the line for editors, which is of its place."""
    from sizing.catalog.files import read_text
    from sizing.cli.output import print_text
    from sizing.specs.errors import Fault, InputError

    if name is None or path is None or as_json:
        why = "contradicts --json" if as_json else "is of one entry"
        raise InputError(Fault(why, field="--yaml", allowed="one of them" if as_json else "with a name"))
    if not is_whole or path.suffix not in (".yaml", ".yml"):
        raise InputError(
            Fault(f"{name!r} has no file of its own", field="--yaml", allowed="the name of a whole profile")
        )
    lines = read_text(path).splitlines()
    print_text("\n".join(line for line in lines if not line.startswith("# yaml-language-server")))


def _show(title: str, path: Any, entry: dict[str, Any], as_json: bool) -> None:
    from sizing.cli.output import write
    from sizing.report.listings import Entry, document_of_entry

    write(document_of_entry(Entry(title, str(path), entry)), "json" if as_json else "table")


def _stated(spec: BaseModel) -> dict[str, Any]:
    """The stated fields of a profile (null where stated so), without defaults."""
    return spec.model_dump(mode="json", exclude_unset=True)


def gpus(name: Name = None, json: AsJson = False, yaml: AsYaml = False) -> None:
    """List the GPU types known, or show one with its sources."""
    from sizing.catalog import profiles

    found = profiles.load_gpu(name) if name else None
    if yaml:
        _printed(name, None if found is None else found.path, as_json=json, is_whole=":" not in (name or ""))
        return
    if found:
        _show(found.id, found.path.name, _stated(found.spec), json)
        return
    columns = (
        "name",
        "memory_gib",
        "bandwidth_gb_per_s",
        "bf16_tflops",
        "fp8_tflops",
        "link",
        "measured",
        "aliases",
    )
    rows = []
    for id_ in profiles.GPUS.ids:
        gpu = profiles.load_gpu(id_).spec
        sheet = gpu.datasheet
        link = f"{sheet.link.kind} x{sheet.link.domain_gpus}" if sheet.link else "PCIe"
        rows.append(
            (id_, sheet.memory.cuda_visible_gib, sheet.memory.bandwidth_gb_per_s, sheet.dense_tflops.bf16 or sheet.dense_tflops.fp16,
             sheet.dense_tflops.fp8, link, bool(gpu.efficiency), ", ".join(gpu.aliases))
        )  # fmt: skip
    _list("gpus", columns, rows, json)


def models(name: Name = None, json: AsJson = False, yaml: AsYaml = False) -> None:
    """List the models known, or show one with its sources."""
    from sizing.catalog import models

    found = models.load_model(name) if name else None
    if yaml:
        _printed(name, None if found is None else found.path, as_json=json)
        return
    if found:
        facts = _stated(found.facts) if found.facts else {"config": str(found.path)}
        _show(found.id, found.path.name, facts, json)
        return
    columns = ("name", "parameters_b", "active_parameters_b", "model", "aliases")
    rows = []
    for id_ in models.SHELF.ids:
        facts_ = models.load_model(id_).facts
        if facts_ is not None:
            rows.append((id_, facts_.parameters_b, facts_.active_parameters_b, facts_.name, ", ".join(facts_.aliases)))
    _list("models", columns, rows, json)


def engines(name: Name = None, json: AsJson = False, yaml: AsYaml = False) -> None:
    """List the serving engines known, or show one with its settings."""
    from sizing.catalog import profiles

    if name:
        from sizing.model.settings import check_version

        found, version = profiles.load_engine(name)
        check_version(found.spec, version)
        if yaml:
            _printed(name, found.path, as_json=json)
            return
        _show(found.id, found.path.name, _stated(found.spec), json)
        return
    if yaml:
        _printed(None, None, as_json=json)
    rows = []
    for id_ in profiles.ENGINES.ids:
        engine = profiles.load_engine(id_)[0].spec
        rows.append((id_, engine.oldest, engine.newest, ", ".join(engine.aliases)))
    _list("engines", ("name", "oldest", "newest", "aliases"), rows, json)


def workloads(name: Name = None, json: AsJson = False, yaml: AsYaml = False) -> None:
    """List the ready workloads and fleets, or show one."""
    from sizing.catalog import workloads
    from sizing.catalog import workloads as fleets
    from sizing.catalog.shelf import find

    if yaml:
        known = fleets.FLEETS if name in fleets.FLEETS.ids else workloads.SHELF
        _printed(name, None if name is None else find(name, known).path, as_json=json)
        return
    if name in fleets.FLEETS.ids and (fleet := fleets.find_fleet(name)) is not None:
        _show(fleet.id, f"{fleet.id}.yaml", _stated(fleet.spec), json)
        return
    if name:
        found = workloads.load_workload(name)
        _show(found.id, found.path.name, _stated(found.spec), json)
        return
    rows: list[tuple[Any, ...]] = []
    for id_ in workloads.SHELF.ids:
        spec = workloads.load_workload(id_).spec
        rows.append((id_, spec.model, spec.tokens.isl, spec.tokens.osl, spec.mode, spec.description or ""))
    for id_ in fleets.FLEETS.ids:
        fleet = fleets.find_fleet(id_)
        if fleet is not None:
            count = f"{len(fleet.members)} workloads"
            rows.append((id_, count, None, None, "fleet", fleet.spec.description or ""))
    _list("workloads", ("name", "model", "isl", "osl", "mode", "description"), rows, json)


PRICE_COLUMNS = (
    "of", "provider", "product", "kind", "usd_per_gpu_hour", "usd_per_million_input", "usd_per_million_output", "date",
    "confidence", "source",
)  # fmt: skip


def prices(
    name: Annotated[
        str | None, typer.Argument(help="A GPU type, a provider, or part of a model's name; all are listed without it.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the prices known, of GPU-hours and of APIs.

    Each has its date and how sure it is; an API's prices are of a million tokens.
    """
    from sizing.catalog import profiles
    from sizing.catalog.prices import api_offers, offers
    from sizing.catalog.shelf import hyphenated
    from sizing.specs.errors import Fault, InputError

    rows: list[tuple[Any, ...]] = []
    for id_ in profiles.GPUS.ids:
        rows += [
            (id_, o.provider, o.sku, o.kind, o.usd_per_gpu_hour, None, None, o.date, o.confidence, o.source)
            for o in offers(profiles.load_gpu(id_).spec)
        ]
    for offer in api_offers():
        of = offer.model
        priced = (None, of.input, of.output, offer.date, of.confidence, offer.source)
        rows.append((of.model, offer.provider, "API", "per token", *priced))
    word = hyphenated(name or "")
    found = [row for row in rows if word in hyphenated(row[0]) or word == hyphenated(row[1])]
    if not found:
        allowed = "a GPU type, a provider or a model of llmsize prices"
        raise InputError(Fault(f"no price of {name!r} is known", allowed=allowed))
    # Addresses would break the lines of a terminal: JSON has them.
    columns = PRICE_COLUMNS if json else PRICE_COLUMNS[:-1]
    _list("prices", columns, (row if json else row[:-1] for row in found), json)
