"""`llmsize gpus`, `models`, `engines`, `workloads`, `prices`: lists of the catalogue, or one entry with its sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from sizing.specs.units import GIGA

if TYPE_CHECKING:
    from sizing.catalog.models import FoundModel
    from sizing.catalog.shelf import Shelf
    from sizing.report.listings import Listing
    from sizing.specs.gpu import Price

T = TypeVar("T")
Name = Annotated[
    str | None,
    typer.Argument(help="Entry to show with its sources, or the beginning of several. Without one, all are listed."),
]
AsYaml = Annotated[bool, typer.Option("--yaml", help="Print the file of the entry, to copy and edit.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class KnownEntry(NamedTuple):
    """One entry: its id, its file, its fields, and whether it is the whole file."""

    id: str
    path: Path
    entry: dict[str, Any]
    is_whole: bool = True


def _stated(found: Any, path: Path | None = None, *, is_whole: bool = True) -> KnownEntry:
    """The fields in a profile's file without defaults; stated nulls stay."""
    return KnownEntry(found.id, path or found.path, found.spec.model_dump(json=True, exclude_unset=True), is_whole)


def _answer(listed: Listing, one: KnownEntry | None, *, json: bool, yaml: bool) -> None:
    """Write the list or the requested entry; with `yaml`, the entry's file."""
    from sizing.cli.output import write
    from sizing.report.listings import Entry, document_of_entry, document_of_list

    if yaml:
        _print_file(one, json=json)
    elif one is not None:
        write(document_of_entry(Entry(one.id, one.path.name, one.entry)), "json" if json else "table")
    else:
        write(document_of_list(listed), "json" if json else "table")


def _print_file(one: KnownEntry | None, *, json: bool) -> None:
    """Print the file of an entry without its line for editors, which depends on the file's location."""
    from sizing.catalog.files import read_text
    from sizing.cli.output import print_text
    from sizing.specs.errors import InputError

    if json:
        raise InputError("contradicts --json", field="--yaml", remedy="state one of them")
    if one is None:
        raise InputError("is of one entry", field="--yaml", remedy="use it with a name")
    if not one.is_whole or one.path.suffix not in (".yaml", ".yml"):
        raise InputError(f"{one.id!r} has no file of its own", field="--yaml", allowed="the name of a whole profile")
    lines = read_text(one.path).splitlines()
    print_text("\n".join(line for line in lines if not line.startswith("# yaml-language-server")))


def _one_or_several(name: str, shelf: Shelf[Any], load: Callable[[str], T]) -> tuple[T | None, tuple[str, ...]]:
    """The entry of a name, or the ids of all entries with a name that begins so. Raises InputError where there is neither."""
    from sizing.catalog.shelf import beginning, entries, is_path
    from sizing.specs.errors import InputError

    try:
        return load(name), ()
    except InputError:
        hits = () if is_path(name) else beginning(shelf.key(name), entries(shelf), shelf.key)
        if len(hits) < 2:
            raise
        return None, tuple(hit.id for hit in hits)


GPU_COLUMNS = ("name", "memory_gib", "bandwidth_gb_per_s", "bf16_tflops", "fp8_tflops", "link", "measured", "aliases")
MODEL_COLUMNS = ("name", "parameters_b", "active_parameters_b", "model", "aliases")
WORKLOAD_COLUMNS = ("name", "model", "isl", "osl", "mode", "description")


def gpus(name: Name = None, json: AsJson = False, yaml: AsYaml = False) -> None:
    """List the known GPU types, or show one with its sources."""
    from sizing.catalog import profiles
    from sizing.report.listings import Listing

    def row(id_: str) -> tuple[Any, ...]:
        gpu = profiles.load_gpu(id_).spec
        sheet, tflops = gpu.datasheet, gpu.datasheet.dense_tflops
        link = f"{sheet.link.kind} x{sheet.link.domain_gpus}" if sheet.link else "PCIe"
        sizes = sheet.memory.cuda_visible_gib, sheet.memory.bandwidth_gb_per_s, tflops.bf16 or tflops.fp16, tflops.fp8
        return (id_, *sizes, link, bool(gpu.efficiency), ", ".join(gpu.aliases))

    found, several = _one_or_several(name, profiles.GPUS, profiles.load_gpu) if name else (None, ())
    one = None if found is None else _stated(found, is_whole=":" not in str(name))
    rows = () if one else tuple(map(row, several or profiles.GPUS.ids))
    _answer(Listing("gpus", GPU_COLUMNS, rows), one, json=json, yaml=yaml)


def models(name: Name = None, json: AsJson = False, yaml: AsYaml = False) -> None:
    """List the known models, or show one with its sources."""
    from sizing.catalog import models
    from sizing.report.listings import Listing

    one, rows = None, tuple[tuple[Any, ...], ...]()
    found, several = _one_or_several(name, models.SHELF, models.load_model) if name else (None, ())
    if found is not None:
        facts = found.facts.model_dump(json=True, exclude_unset=True) if found.facts else _counted(found)
        one = KnownEntry(found.id, found.path, facts)
    else:
        known = [(id_, models.load_model(id_).facts) for id_ in several or models.SHELF.ids]
        about = [(id_, f, ", ".join(f.aliases)) for id_, f in known if f]
        rows = tuple((id_, f.parameters_b, f.active_parameters_b, f.name, others) for id_, f, others in about)
    _answer(Listing("models", MODEL_COLUMNS, rows), one, json=json, yaml=yaml)


def _counted(found_model: FoundModel) -> dict[str, Any]:
    """What a model from a file comes to, counted from its config."""
    from sizing.model.architecture import active_parameters, cache_bytes_per_token, parameters

    model = found_model.spec
    sizes = {"parameters_b": parameters(model) / GIGA, "active_parameters_b": active_parameters(model) / GIGA}
    counted = {name: float(f"{value:.4g}") for name, value in sizes.items()}
    return {"config": str(found_model.path), **counted, "cache_bytes_per_token": cache_bytes_per_token(model)}


def engines(name: Name = None, json: AsJson = False, yaml: AsYaml = False) -> None:
    """List the known serving engines, or show one with its settings."""
    from sizing.catalog import profiles
    from sizing.model.settings import check_version
    from sizing.report.listings import Listing

    one, rows = None, tuple[tuple[Any, ...], ...]()
    if name:
        found, version = profiles.load_engine(name)
        check_version(found.spec, version)
        one = _stated(found)
    else:
        known = [(id_, profiles.load_engine(id_)[0].spec) for id_ in profiles.ENGINES.ids]
        rows = tuple((id_, engine.oldest, engine.newest, ", ".join(engine.aliases)) for id_, engine in known)
    _answer(Listing("engines", ("name", "oldest", "newest", "aliases"), rows), one, json=json, yaml=yaml)


def workloads(name: Name = None, json: AsJson = False, yaml: AsYaml = False) -> None:
    """List the ready workloads and fleets, or show one."""
    from sizing.catalog import fleets, workloads
    from sizing.catalog.shelf import find
    from sizing.report.listings import Listing

    one, rows = None, list[tuple[Any, ...]]()
    if name:
        fleet = fleets.find_fleet(name) if name in fleets.SHELF.ids else None
        found = workloads.load_workload(name) if fleet is None else None
        one = _stated(found) if found is not None else _stated(fleet, find(name, fleets.SHELF).path)
    else:
        for id_ in workloads.SHELF.ids:
            w = workloads.load_workload(id_).spec
            rows.append((id_, w.model, w.tokens.isl, w.tokens.osl, w.mode, w.description or ""))
        for id_ in fleets.SHELF.ids:
            if (fleet := fleets.find_fleet(id_)) is not None:
                about = fleet.spec.description or ""
                rows.append((id_, f"{len(fleet.members)} workloads", None, None, "fleet", about))
    _answer(Listing("workloads", WORKLOAD_COLUMNS, tuple(rows)), one, json=json, yaml=yaml)


def _of_one_price(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of prices; rows that differ only in their product (the third column) become one."""
    products: dict[tuple[Any, ...], list[str]] = {}
    for of, provider, product, *price in rows:
        products.setdefault((of, provider, *price), []).append(product)
    for (of, provider, *price), named in products.items():
        yield (of, provider, ", ".join(dict.fromkeys(named)), *price)


PRICE_COLUMNS = (
    "of", "provider", "product", "kind", "usd_per_gpu_hour", "usd_per_million_input", "usd_per_million_output", "date",
    "confidence", "source",
)  # fmt: skip


TAKEN = "taken in answers"


def _priced(name: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows of a GPU type, by any of its names, of a provider or of a model. Raises InputError without any."""
    from sizing.catalog.profiles import load_gpu
    from sizing.catalog.shelf import hyphenated
    from sizing.specs.errors import InputError, nearest

    word = hyphenated(name)
    found = [row for row in rows if word in hyphenated(row[0]) or word == hyphenated(row[1])]
    if found:
        return found
    with suppress(InputError):
        id_ = load_gpu(name).id
        found = [row for row in rows if row[0] == id_]
    if not found:
        allowed = "a GPU type, a provider or a model of llmsize prices"
        near = nearest(name, list(dict.fromkeys(str(word) for row in rows for word in row[:2])))
        raise InputError(f"no price of {name!r} is known", allowed=allowed, nearest=near)
    return found


def prices(
    name: Annotated[
        str | None,
        typer.Argument(
            help="GPU type, provider, or part of a model's name; several with commas. Without one, all prices are listed."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """List the known prices of GPU-hours and of APIs.

    Each price has its date and how sure it is. Prices of APIs are for a million tokens. Answers use the median of the providers'
    on-demand prices, unless --price or --provider states another. For a provider with several products, its own median counts (the
    lower of two in the middle).
    """
    from sizing.catalog import profiles
    from sizing.catalog.prices import among, api_offers, offers, typical_offer
    from sizing.report.listings import Listing
    from sizing.specs.errors import Part, check
    from sizing.specs.units import comma_separated

    rows: list[tuple[Any, ...]] = []
    for id_ in profiles.GPUS.ids:
        gpu = profiles.load_gpu(id_).spec
        listed: list[tuple[str, str, str, Price]] = [(o.provider, o.sku, o.kind, o) for o in offers(gpu)]
        chosen = typical_offer(gpu)
        if chosen is not None:
            listed.append((among(gpu), f"{chosen.provider} {chosen.sku}", TAKEN, chosen))
        rows += [(id_, *words, o.usd_per_gpu_hour, None, None, o.date, o.confidence, o.source) for *words, o in listed]
    for offer in api_offers():
        of = offer.model
        priced = (None, of.input, of.output, offer.date, of.confidence, offer.source)
        rows.append((of.model, offer.provider, "API", "per token", *priced))
    asked = [Part(partial(_priced, word, rows)) for word in comma_separated(name or "")]
    check(*asked)
    found = list(dict.fromkeys(row for each in asked for row in each.value)) if asked else rows
    # Addresses are too long for a terminal; JSON has them.
    columns = PRICE_COLUMNS if json else PRICE_COLUMNS[:-1]
    rows_shown = tuple(found if json else _of_one_price(row[:-1] for row in found))
    _answer(Listing("prices", columns, rows_shown), None, json=json, yaml=False)
