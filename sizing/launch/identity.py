"""Which engine version, model, precision and GPU type a container runs: by its file, else by what the user says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from sizing.catalog import profiles
from sizing.catalog.models import FoundModel, load_model
from sizing.catalog.shelf import is_path
from sizing.launch.commands import image_of
from sizing.launch.container import Container
from sizing.launch.script_text import ABOUT
from sizing.launch.terms import Dialect, ReadArgs, dialect_of, flags_of
from sizing.model import settings
from sizing.model.precision import SIXTEEN_BIT
from sizing.specs.errors import Fault, InputError
from sizing.specs.launch import LaunchFacts

T = TypeVar("T")
BLOCKS = "_block"  # at the end of a format whose scales are those of blocks
_TAG = re.compile(r"v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc)\d+)?)")


class UserFacts(NamedTuple):
    """Facts from the user that the files do not state, and `ignored` flags, which the user says change nothing.

    Fields named in `settings` come from settings files. For these, a different value in the deployment's file takes precedence.
    """

    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    replicas: int | None = None
    ignored: frozenset[str] = frozenset()
    settings: frozenset[str] = frozenset()


class ReadContext(NamedTuple):
    """The file to read, and the facts needed to read it. Commands run in `folder`, which is None for manifests."""

    file: str
    filled: UserFacts
    facts: LaunchFacts
    folder: Path | None = None

    def settled(self, name: str, stated: T | None, line: int | None, said: T | None) -> T | None:
        """The value that the file states, else the user's value. Raises InputError if the two contradict each other."""
        if stated is None or said is None or said == stated or name in self.filled.settings:
            return said if stated is None else stated
        what = f"is {stated} here, and --{name} says {said}"
        raise InputError(what, file=self.file, line=line, field=name, remedy="state one of them")


def dialect_in(name: str, container: Container, asked: ReadContext) -> tuple[Dialect, str | None]:
    """The flags of the engine version, and the assumption made. The version is the user's, the image tag's, or the newest."""
    spec, assumed = profiles.load_engine(name)[0].spec, None
    engine, _, version = (container.engine or "").partition(":")
    tag, line = (version if engine == name and version else _tag(name, container)), container.lines.get("image")
    said = _said_version(name, spec.title, asked)
    if said is not None and tag is not None and f"{tag}.".startswith(f"{said}."):  # 0.19 also means 0.19.0
        said = tag
    stated = asked.settled("engine", tag, line, said)
    runs = None if stated is not None or asked.filled.gpu is None else profiles.load_gpu(asked.filled.gpu).spec.own_runs
    if runs is not None and runs.engine == name:
        stated, assumed = runs.engine_version, f"{spec.title} {runs.engine_version}: that of the profile's own runs"
    try:
        version = settings.check_version(spec, stated)
    except InputError as error:
        if tag is None:  # the option's version, of which no line of the file says anything
            of_option = (Fault(each.message, None, None, "--engine", each.allowed) for each in error.faults)
            raise InputError(of_option) from None
        told = f"use --engine {name}:VERSION"
        faults = [
            Fault(each.message, asked.file, line, "image", remedy=f"{told}, {each.allowed}") for each in error.faults
        ]
        raise InputError(faults) from None
    if stated is None:
        assumed = f"{spec.title} {version}: nothing says which version"
    return dialect_of(name, spec.title, version), assumed


def _tag(name: str, container: Container) -> str | None:
    """The engine version in an image's tag; None for an image that is not the engine's own, with other tags."""
    engine, image = flags_of(name), image_of(container.image)
    own = {image_of(text).name for text in (engine.image, *engine.vendor_images.values())}
    of_engine = re.search(rf"(?<![a-z0-9]){name}[-_](?=v?\d)", image.tag)  # rocm/vllm:rocm6.4.1_vllm_0.10.1
    tag = _TAG.match(image.tag, of_engine.end() if of_engine else 0) if image.name in (*own, name) else None
    if tag is None or image.name in own:
        return None if tag is None else tag[1]
    try:  # a custom image, which may have other tags
        return settings.check_version(profiles.load_engine(name)[0].spec, tag[1])
    except InputError:
        return None


def _said_version(name: str, title: str, asked: ReadContext) -> str | None:
    """The engine version that the user states; None without one, or if a settings file states another engine.

    Raises InputError if the user states another engine than the file starts.
    """
    if asked.filled.engine is None:
        return None
    found, version = profiles.load_engine(asked.filled.engine)
    if found.id == name:
        return version
    if "engine" in asked.filled.settings:
        return None
    field = f"--engine {asked.filled.engine}"
    raise InputError(f"contradicts {asked.file}, which starts {title}", field=field, allowed=name)


def model_name(args: ReadArgs, container: Container, asked: ReadContext) -> str | None:
    """The model's name in the file, or the user's if the file's name is no known model, such as a folder or an alias.

    Raises InputError if both are known and differ.
    """
    stated = str(args.model.value) if args.model is not None else container.model
    held, said = container.holds.get("model"), asked.filled.model
    if held is not None and stated is not None:
        stated = _holding(stated, held, container, asked)
    if stated is None or said is None:
        return said if stated is None else stated
    try:
        found = load_model(stated)
    except InputError:
        return said
    same = found.id == load_model(said).id
    line = args.model.line if args.model is not None else container.lines.get("command")
    return stated if same else asked.settled("model", stated, line, said)


def _holding(checkpoint: str, held: str, container: Container, asked: ReadContext) -> str:
    """The model that a checkpoint holds, by what its file says. Raises InputError if the checkpoint's name says another model."""
    try:
        named = load_model(checkpoint)
    except InputError:
        return held
    if named.id != load_model(held).id:
        what, line = f"is {checkpoint}, and {ABOUT}model says {held}", container.lines.get("command")
        raise InputError(what, file=asked.file, line=line, field="model", remedy="state one of them")
    return held if "precision" in container.holds else checkpoint


def model_in(name: str | None, args: ReadArgs, container: Container, asked: ReadContext) -> FoundModel | None:
    """The model of a name; None without a name. Raises InputError for an unknown name."""
    line = args.model.line if args.model is not None else container.lines.get("command")
    try:
        return None if name is None else load_model(name)
    except InputError as error:
        allowed = "-m with its name or config.json"
        faults = [Fault(each.message, asked.file, line, "model", allowed, each.nearest) for each in error.faults]
        raise InputError(faults) from None


def is_quantised(found_model: FoundModel) -> bool:
    """Whether a checkpoint stores quantised weights, by its name or its config."""
    return found_model.precision is not None or found_model.spec.quantisation.precision not in SIXTEEN_BIT


def misread(args: ReadArgs, dialect: Dialect, name: str | None, model: FoundModel | None, file: str) -> Iterator[Fault]:
    """Yield the fault of a quantisation that engines refuse for the checkpoint: one of another format, or one that they do not make.

    A model that the user names for a folder says how large it is, not how the folder stores it.
    """
    row, stated = dialect.writes("precision"), args.words.get("precision")
    if row is None or stated is None or model is None or args.model is None or name != args.model.value:
        return
    word, own = str(stated.value), model.precision or model.spec.quantisation.precision
    asked = row.ours.get(word)
    if is_quantised(model):
        if asked is not None and word not in row.any_format and not _is_of_family(asked, own):
            what = f"{word} reads {asked.upper()} weights, and {name} stores {own.upper()}"
            yield Fault(
                what, file, stated.line, stated.flag, remedy="leave it out: engines read the format from the checkpoint"
            )
    elif word not in row.made:
        what = f"{word} reads a checkpoint that is quantised already, and {name} stores {own.upper()}"
        made = f"{', '.join(row.values.values())}, which {dialect.title} makes while it loads"
        yield Fault(what, file, stated.line, stated.flag, f"{made}; or a quantised checkpoint")


def _is_of_family(one: str, other: str) -> bool:
    """Whether two formats are the same, with or without scales of blocks."""
    return one.removesuffix(BLOCKS) == other.removesuffix(BLOCKS)


def gpu_in(container: Container, asked: ReadContext) -> str | None:
    """The profile of the GPU type in the node selector, or the user's GPU type if there is no selector."""
    named = next((gpu for label in container.labels if (gpu := gpu_of_label(label, asked.facts)) is not None), None)
    rented = [id_ for id_ in profiles.GPUS.ids if container.instances and _rents(id_, container.instances)]
    known = next((gpu for name, gpu in asked.facts.cloud_names.items() if name in container.instances), None)
    stated, said = named or (rented[0] if len(rented) == 1 else known), said_gpu(asked)
    if stated is None and said is None and container.labels:
        what = f"runs on the GPU type {container.labels[0]}, which is not known"
        line, allowed = container.lines.get("gpu"), "-g GPU (llmsize gpus), or the path of a profile"
        raise InputError(what, file=asked.file, line=line, field=container.name, allowed=allowed)
    if container.slice_ is not None:  # a slice of the named card
        part = f":{container.slice_}"
        if said is not None and ":" in said and stated is None:  # the user's slice must be the same one
            stated = said.partition(":")[0]
        stated, said = (gpu and (gpu if ":" in gpu else f"{gpu}{part}") for gpu in (stated, said))
    found = settled_gpu(stated, container.lines.get("gpu"), said, asked)
    return found if found is None or container.slice_ is None else profiles.load_gpu(found).id


def settled_gpu(stated: str | None, line: int | None, said: str | None, asked: ReadContext) -> str | None:
    """The GPU type as `ReadContext.settled` says it. A profile of the user's own stands for the GPU type that it extends."""
    if (
        stated is not None
        and said is not None
        and is_path(said)
        and profiles.stands_for(profiles.load_gpu(said), stated)
    ):
        stated = said
    return asked.settled("gpu", stated, line, said)


def said_gpu(asked: ReadContext) -> str | None:
    """The profile that the user names. Raises InputError if it does not exist."""
    named = asked.filled.gpu
    if named is None:
        return None
    found = profiles.load_gpu(named)
    return named if is_path(named) else found.id


def gpu_of_label(label: str, facts: LaunchFacts) -> str | None:
    """The profile of the GPU type in a node label; None if it is unknown."""
    written = next(
        (gpu for gpu, known in facts.node_labels.items() if known == label), facts.cloud_names.get(label, label)
    )
    try:
        found = profiles.load_gpu(written)
        return written if is_path(written) else found.id
    except InputError:
        return None


def _rents(gpu: str, instances: Sequence[str]) -> bool:
    return any(price.sku in instances for price in profiles.load_gpu(gpu).spec.prices)
