"""A deployment that exists, read from what it is written in: a command, a manifest, or a file of this project's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from sizing.catalog import profiles
from sizing.catalog.faults import faults_of
from sizing.catalog.files import DataFile, read_text, validate
from sizing.catalog.models import FoundModel, load_model
from sizing.catalog.shelf import is_path, only
from sizing.catalog.yaml import documents
from sizing.launch import shell
from sizing.launch.flags import Dialect, ReadArgs, Source, Word, dialect_of, engine_names, flags_of, read
from sizing.launch.manifests import Container, containers
from sizing.launch.terms import data_of
from sizing.model import architecture, settings
from sizing.model.precision import SIXTEEN_BIT
from sizing.specs.errors import Fault, InputError
from sizing.specs.launch import DeploymentFile, Launched, LaunchFacts, Policy

T = TypeVar("T")
OWN = "deployments"  # the key of this project's own form
YAML = (".yaml", ".yml", ".json")
_TAG = re.compile(r":v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc)\d+)?)")
RUNNERS = ("docker", "podman", "nerdctl")
MOST_COMMANDS = 256  # of a file
COMMAND = "the command line"  # the file of a command that is an argument itself


class Filled(NamedTuple):
    """What a user says of deployments that their files do not say; and flags of which they say that they change nothing.

    Those of `settings` were not said now: they give way where a file says another.
    """

    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    replicas: int | None = None
    ignored: frozenset[str] = frozenset()
    settings: frozenset[str] = frozenset()


class Existing(NamedTuple):
    """One deployment as it was read: its settings, the file and the lines of its fields, and what was assumed."""

    launched: Launched
    file: str
    lines: Mapping[str, int | None]
    assumed: tuple[str, ...] = ()
    demand: str | None = None
    policy: Policy = Policy.model_construct()

    def line(self, *fields: str) -> int | None:
        """The line of the first of the fields that has one."""
        return next((line for name in fields if (line := self.lines.get(name)) is not None), None)


class _Asked(NamedTuple):
    """What is read, and what helps to read it."""

    file: str
    filled: Filled
    facts: LaunchFacts

    def settled(self, name: str, stated: T | None, line: int | None, said: T | None) -> T | None:
        """What the file states, else what the user says. Raises InputError where the two contradict each other."""
        if stated is None or said is None or said == stated or name in self.filled.settings:
            return said if stated is None else stated
        raise InputError(
            f"is {stated} here, and --{name} says {said}", file=self.file, line=line, field=name, allowed="one of them"
        )


def existing(path: str, filled: Filled) -> list[Existing]:
    """The deployments of a file, or of a command line that is given itself.

    Raises InputError with what is wrong in it, and with what it does not say: each by the option that says it.
    """
    if " " in path.strip() and _is_command(path):
        return _of_script(path, _Asked(COMMAND, filled, only(LaunchFacts)))
    text, asked = read_text(path, why="no manifest is"), _Asked(path, filled, only(LaunchFacts))
    if (
        not path.lower().endswith(YAML)
        and any(word in text for word in (*RUNNERS, *(phrase.split()[0] for phrase in _phrases())))
        and not _is_mapping(text, path)
    ):
        return _of_script(text, asked)
    own = _own(text, asked)
    return own if own is not None else _of_manifest(text, asked)


def _is_command(text: str) -> bool:
    words = shell.words(text, COMMAND)
    runs = bool(words) and words[0].text.rpartition("/")[2] in RUNNERS
    return runs or any(_begins(words, phrase) is not None for phrase in _phrases())


def _is_mapping(text: str, file: str) -> bool:
    try:
        return any(isinstance(each.data, dict) for each in documents(text, file))
    except InputError:
        return False


def _phrases() -> Iterator[str]:
    for name in engine_names():
        yield from flags_of(name).serves


def _own(text: str, asked: _Asked) -> list[Existing] | None:
    """The deployments of this project's own form; None for another."""
    try:
        found = documents(text, asked.file)
    except InputError:
        return None
    if len(found) != 1 or not isinstance(found[0].data, dict) or OWN not in found[0].data:
        return None
    document = DataFile(found[0].data, asked.file, text)
    spec = validate(DeploymentFile, document)
    read_ = []
    for number, launched in enumerate(spec.deployments):
        at = (OWN, number)
        lines: dict[str, int | None] = {
            name: document.line((*at, "serving", name)) for name in launched.serving.model_fields_set
        }
        lines |= {name: document.line((*at, name)) for name in launched.model_fields_set}
        lines |= {"command": document.line(at), "gpus": lines.get("reserved_gpus")}
        gpu = None if launched.gpu is None else profiles.load_gpu(launched.gpu).id
        update = {
            "gpu": asked.settled("gpu", gpu, lines.get("gpu"), _said_gpu(asked)),
            "replicas": asked.settled("replicas", launched.replicas, lines.get("replicas"), asked.filled.replicas),
        }
        whole = launched.model_copy(update=update)
        missing = _unsaid(whole.name, (whole.model, whole.gpu, whole.replicas), asked, lines["command"])
        if missing:
            raise InputError(missing)
        read_.append(Existing(whole, asked.file, lines, (), spec.demand, spec.policy))
    return read_


def _of_script(text: str, asked: _Asked) -> list[Existing]:
    script = shell.script(text, asked.file)
    return _all_of([found for command in script.commands for found in _started(command, script)], asked)


def _started(command: tuple[Word, ...], script: shell.ShellScript) -> Iterator[Container]:
    """Yield what a command starts where that is an engine: by itself, or in a container of its image."""
    found = Container("deployment", (), command, variables=dict(script.variables), files=script.files)
    found.lines["command"] = command[0].line
    if command[0].text.rpartition("/")[2] in RUNNERS:
        images = (at for at, word in enumerate(command) if not word.text.startswith("-") and _image_of(word.text))
        at = next(images, None)
        if at is None:
            return
        found.image, found.words = command[at].text, command[at + 1 :]
        found.lines["image"] = command[at].line
        yield found
    elif any(_begins(command, phrase) is not None for phrase in _phrases()):
        yield found


def _of_manifest(text: str, asked: _Asked) -> list[Existing]:
    found = [each for each in containers(text, asked.file, asked.facts) if _engine(each) is not None]
    return _all_of([each for each in found if not _is_further_node(each.words)], asked)


def _is_further_node(words: Sequence[Word]) -> bool:
    """Whether a command starts a further node of an instance that another command starts."""
    texts = [word.text for word in words]
    ranks = [texts[at + 1] for at, text in enumerate(texts[:-1]) if text == "--node-rank"]
    return "--headless" in texts or any(rank not in ("0", "") and rank.isdecimal() for rank in ranks)


def _all_of(found: Sequence[Container], asked: _Asked) -> list[Existing]:
    """The deployments of some containers. Raises InputError with the faults of all, and where there is none."""
    if not found:
        titles = "vllm serve, sglang.launch_server or trtllm-serve"
        raise InputError(
            "holds no command of an engine that is known", file=asked.file, allowed=f"{titles}, or `{OWN}:`"
        )
    if len(found) > MOST_COMMANDS:
        raise InputError(f"holds {len(found):,} commands", file=asked.file, allowed=f"at most {MOST_COMMANDS}")
    read_: list[Existing] = []
    faults: list[Fault] = []
    for container in found:
        try:
            read_.append(_existing(container, asked))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(dict.fromkeys(faults))
    roles = {each.launched.role for each in read_}
    return read_ if {"prefill", "decode"} <= roles else [_alone(each) for each in read_]


def _alone(found: Existing) -> Existing:
    """A deployment without a partner: one that only its name puts into a pool does all of a request."""
    return (
        found if "role" in found.lines else found._replace(launched=found.launched.model_copy(update={"role": "whole"}))
    )


# --- the engine of a command ------------------------------------------------------------------------------------------


def _begins(words: Sequence[Word], phrase: str) -> int | None:
    """The number of words up to the end of an engine's command; None where the words do not hold it."""
    wanted = phrase.split()
    for start in range(len(words) - len(wanted) + 1):
        names = [word.text.rpartition("/")[2] for word in words[start : start + len(wanted)]]
        if names == wanted:
            return start + len(wanted)
    return None


def _engine(container: Container) -> tuple[str, int] | None:
    """The engine that a container runs, and the words before its flags; None where it runs none that is known."""
    for name in engine_names():
        spec = flags_of(name)
        for phrase in spec.serves:
            begun = _begins(container.words, phrase)
            if begun is not None:
                return name, begun
    inside = _within(container)
    if inside is not None:
        container.words = inside
        return _engine(container)
    if container.keyed:
        return "vllm", 0
    own = not container.words or container.words[0].text.startswith("-")
    imaged = _image_of(container.image) if own else None
    return None if imaged is None else (imaged, 0)


def _image_of(image: str) -> str | None:
    """The engine of a container image, by its name; None for any other."""
    for name in engine_names():
        if any(part in image for part in flags_of(name).images):
            return name
    return None


def _within(container: Container) -> tuple[Word, ...] | None:
    """The words of the engine's command in a script that is one word, as of `bash -c`; None where there is none."""
    for word in container.words:
        if not any(space in word.text for space in " \n"):
            continue
        script = shell.script(word.text, "", (word.line or 1) + (1 if "\n" in word.text else 0))
        for command in script.commands:
            if any(_begins(command, phrase) is not None for phrase in _phrases()):
                container.variables |= script.variables
                container.files |= script.files
                return command
    return None


def _dialect(name: str, container: Container, asked: _Asked) -> tuple[Dialect, str | None]:
    """The flags of the engine in its version: as the user says, of the image's tag, else the newest; and what was assumed."""
    spec, assumed = profiles.load_engine(name)[0].spec, None
    tag, line = _tag(name, container), container.lines.get("image")
    said = _said_version(name, spec.title, asked)
    if said is not None and tag is not None and f"{tag}.".startswith(f"{said}."):  # 0.19 is 0.19.0 too
        said = tag
    stated = asked.settled("engine", tag, line, said)
    try:
        version = settings.check_version(spec, stated)
    except InputError as error:
        allowed = f"--engine {name}:VERSION"
        faults = [Fault(each.message, asked.file, line, "image", f"{allowed}, {each.allowed}") for each in error.faults]
        raise InputError(faults) from None
    if stated is None:
        assumed = f"{spec.title} {version}: nothing says which version"
    return dialect_of(name, spec.title, version), assumed


# --- a deployment -----------------------------------------------------------------------------------------------------


def _existing(container: Container, asked: _Asked) -> Existing:
    found = _engine(container)
    assert found is not None
    dialect, assumed = _dialect(found[0], container, asked)
    source = Source(asked.file, container.variables, container.files, asked.filled.ignored)
    words = _of_command(container.words[found[1] :])
    args = read(dialect, words, source)
    replicas = asked.settled("replicas", container.replicas, container.lines.get("replicas"), asked.filled.replicas)
    said = (_model_name(args, container, asked), _gpu(container, asked), replicas)
    missing = _unsaid(container.name, said, asked, container.lines.get("command"))
    if args.faults or missing:
        raise InputError((*args.faults, *missing))
    model = _model(args, container, asked)
    experts = model is not None and architecture.is_moe(model.spec)
    data = data_of(args, dialect, experts=experts, file=asked.file)
    data["serving"] = {**data["serving"], "engine": f"{found[0]}:{dialect.version}"}
    if model is not None and dialect.engine.holds_longest and "max_model_len" not in (*data["serving"], *args.open):
        data["serving"]["max_model_len"] = model.spec.max_position
    if model is not None and is_quantised(model):
        data.pop("precision", None)  # the flag says how to read the checkpoint
    ranks = data.pop("replicas", 1)
    name, gpu, replicas = said
    data |= {
        "name": container.name,
        "model": name,
        "gpu": gpu,
        "replicas": (replicas or 1) * ranks,
        "reserved_gpus": None
        if container.gpus is None
        else container.gpus // ranks
        if container.gpus % ranks == 0
        else container.gpus,
    }
    data.setdefault("role", next((role for role in ("prefill", "decode") if _says(role, container)), "whole"))
    lines: dict[str, int | None] = {**container.lines}
    lines.update((term, stated.line) for term, stated in args.terms.items())
    if args.model is not None:
        lines["model"] = args.model.line
    launched = _validated(data, args, asked, lines)
    notes = tuple(note for note in (assumed, *container.notes) if note)
    return Existing(launched, asked.file, lines, notes)


def is_quantised(found: FoundModel) -> bool:
    """Whether a checkpoint stores quantised weights, as its name or its config says."""
    return found.precision is not None or found.spec.quantisation.precision not in SIXTEEN_BIT


def _of_command(words: Sequence[Word]) -> list[Word]:
    """The words up to the end of a command; a line that is empty, as after a backslash, is none."""
    ends = next(
        (
            k
            for k, word in enumerate(words)
            if word.text in ("&&", "||", ";", "|", "&", ")") or word.text.startswith((">", "2>"))
        ),
        None,
    )
    return [word for word in words[:ends] if word.text.strip()]


def _says(role: str, container: Container) -> bool:
    """Whether names around a container, or a switch of Dynamo, say that it has a role."""
    said = " ".join((container.name, *container.path)).lower()
    return role in said or any(word.text == f"--is-{role}-worker" for word in container.words)


def _model_name(args: ReadArgs, container: Container, asked: _Asked) -> str | None:
    """The model as the file names it; as the user does where the file's name says nothing: a folder, an alias.

    Raises InputError where both are known and differ.
    """
    stated = str(args.model.value) if args.model is not None else container.model
    said = asked.filled.model
    if stated is None or said is None:
        return said if stated is None else stated
    try:
        found = load_model(stated)
    except InputError:
        return said
    same = found.id == load_model(said).id
    line = args.model.line if args.model is not None else container.lines.get("command")
    return stated if same else asked.settled("model", stated, line, said)


def _model(args: ReadArgs, container: Container, asked: _Asked) -> FoundModel | None:
    """The model that is served; None where nothing names one. Raises InputError for a name that is not known."""
    name = _model_name(args, container, asked)
    if name is None:
        return None
    try:
        return load_model(name)
    except InputError as error:
        line = args.model.line if args.model is not None else container.lines.get("command")
        faults = [
            Fault(fault.message, asked.file, line, "model", "-m with its name or config.json", fault.nearest)
            for fault in error.faults
        ]
        raise InputError(faults) from None


def _gpu(container: Container, asked: _Asked) -> str | None:
    """The profile of the GPU type that nodes are selected by; as the user says where nothing does."""
    named = next((gpu for label in container.labels if (gpu := gpu_of_label(label, asked.facts)) is not None), None)
    rented = [id_ for id_ in profiles.GPUS.ids if container.instances and _rents(id_, container.instances)]
    stated = named or (rented[0] if len(rented) == 1 else None)
    return asked.settled("gpu", stated, container.lines.get("gpu"), _said_gpu(asked))


def _said_gpu(asked: _Asked) -> str | None:
    """The profile that the user names. Raises InputError for none."""
    named = asked.filled.gpu
    if named is None:
        return None
    found = profiles.load_gpu(named)
    return named if is_path(named) else found.id


def _tag(name: str, container: Container) -> str | None:
    """The engine version of an image's tag; None of an image that is not the engine's own, whose tags are others."""
    own, image = (text.partition(":")[0].rpartition("/")[2] for text in (flags_of(name).image, container.image))
    tag = _TAG.search(container.image) if image == own else None
    return None if tag is None else tag[1]


def _said_version(name: str, title: str, asked: _Asked) -> str | None:
    """The engine's version that the user states; None for none, or a setting of another engine.

    Raises InputError for another engine than the file starts.
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


def gpu_of_label(label: str, facts: LaunchFacts) -> str | None:
    """The profile of the GPU type that a label of nodes names; None for one that is not known."""
    written = next((gpu for gpu, known in facts.node_labels.items() if known == label), label)
    try:
        return profiles.load_gpu(written).id
    except InputError:
        return None


def _rents(gpu: str, instances: Sequence[str]) -> bool:
    return any(price.sku in instances for price in profiles.load_gpu(gpu).spec.prices)


def _validated(data: dict[str, Any], args: ReadArgs, asked: _Asked, lines: Mapping[str, int | None]) -> Launched:
    """The deployment of plain data. Raises InputError with each fault at the line of its flag."""
    try:
        return Launched.model_validate({name: value for name, value in data.items() if value is not None})
    except ValidationError as error:
        flags = {str(term): stated.flag for term, stated in args.terms.items()}

        def place(path: tuple[str | int, ...]) -> tuple[str | None, int | None, str, str | None]:
            name = str(path[-1]) if path else ""
            term = next(
                (each for each in (name, *map(str, path), "spec_tokens", "tp") if each in flags or each in lines), name
            )
            return asked.file, lines.get(term), flags.get(term, term), None

        raise InputError(faults_of(error, Launched, data, place)) from None


def _unsaid(
    name: str, said: tuple[str | None, str | None, int | None], asked: _Asked, line: int | None
) -> tuple[Fault, ...]:
    """What nothing says of a deployment (model, GPU type, replicas), each by the option that says it, as one fault."""
    known = (("the model", "-m"), ("the GPU type", "-g"), ("how many replicas run", "--replicas"))
    missing = [entry for entry, value in zip(known, said, strict=True) if value is None]
    if not missing:
        return ()
    what, options = (", ".join(each[at] for each in missing) for at in (0, 1))
    return (Fault(f"does not say {what}", asked.file, line, name, f"with {options}"),)
