"""Reads an existing deployment from a command, a manifest, or a file in this project's own form."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sizing.catalog import profiles
from sizing.catalog.faults import faults_of
from sizing.catalog.files import DataFile, expanded, is_file, read_text, validate
from sizing.catalog.models import FoundModel, load_model
from sizing.catalog.shelf import only
from sizing.catalog.yaml import documents
from sizing.launch.arguments import Source, read
from sizing.launch.commands import engine_of, is_further_node, meant, names_engine, started, unfollowed, unread_script
from sizing.launch.container import (
    CardUse,
    Container,
    Needed,
    gpus_of,
    is_local,
    names_cards,
    of_profiles,
    shared,
    use_of,
    visible,
)
from sizing.launch.documents import OF_ITS_OWN
from sizing.launch.identity import (
    ReadContext,
    UserFacts,
    dialect_in,
    gpu_in,
    is_quantised,
    misread,
    model_in,
    model_name,
    said_gpu,
    settled_gpu,
)
from sizing.launch.manifests import CONTAINERS, LEADER, ONE_REPLICA, WHICH_RUN, WORKER, containers
from sizing.launch.shell import ENDINGS, LASTING, ShellScript, is_unit, unit_script
from sizing.launch.shell import script as script_of
from sizing.launch.terms import Dialect, ReadArgs, StatedTerm, Word, data_of, layout_of, nodes_of, with_acceptance
from sizing.model import architecture, settings
from sizing.question.question import idle
from sizing.specs.errors import Fault, InputError, Part, check, raise_any
from sizing.specs.launch import DeploymentFile, Launched, LaunchFacts, Policy
from sizing.specs.spec import SpecError

OWN = "deployments"  # the key of this project's own form
REDUNDANT = "redundant_experts"  # changes nothing of a model without experts, as expert parallelism does
COMMANDS = "commands"  # of a script
NOT_MODELLED = "is not modelled: steps may be slower than predicted"
RECALLED = "is taken as no CUDA graphs, from memory of the engine and no source"
ONE_START = "the command is started once: nothing says how many replicas run"
ASKED_FOR = (
    ("the model", "-m MODEL"),
    ("the GPU type", "-g GPU (llmsize gpus)"),
    ("how many replicas run", "--replicas N"),
)
COMMAND = "the command line"  # stands for the file if the argument itself is a command
_KEYED = re.compile(r"[\w\"'.-]+:(\s|\Z)|---|- |\[(?!\[?\s)|{")  # how YAML begins; `[ ` begins a test of a shell


class FileDeployment(NamedTuple):
    """One deployment that was read: its settings, its file, the lines of its fields, and the assumptions made."""

    launched: Launched
    file: str
    lines: Mapping[str, int | None]
    assumed: tuple[str, ...] = ()
    demand: str | None = None
    policy: Policy = Policy()
    again: tuple[StatedTerm, ...] = ()  # flags stated again with another value; the last value counts
    nodes: int | None = None  # of a replica; None if the engine or its launcher distributes it
    passed: frozenset[str] = frozenset()  # skipped flags: the user says that they change nothing
    doubt: str | None = None  # why its containers may not get the GPUs that they need
    idle: tuple[tuple[StatedTerm, str], ...] = ()  # flags without effect on its model, each with what it lacks for them
    seen: int | None = None  # GPUs that a replica's command sees; None where nothing says it
    whole: bool = False  # takes all GPUs of its server
    cards: tuple[str, ...] = ()  # those on which it runs, where its file says which
    port: str = ""  # the one on which it listens
    clash: str | None = None  # the other commands that listen on its port

    def line(self, *fields: str) -> int | None:
        """The line of the first field that has a line."""
        return next((line for name in fields if (line := self.lines.get(name)) is not None), None)


def existing(path: str, filled: UserFacts) -> list[FileDeployment]:
    """The deployments in a file, or in a command line that is itself the argument.

    Raises InputError for all faults, and for missing facts, with the option that states each fact.
    """
    facts = only(LaunchFacts)
    if not path.strip():
        raise InputError("an argument names no file", allowed="a file, or a command line in quotes")
    if " " in path.strip() and not is_file(expanded(path)):
        return _of_script(path, ReadContext(COMMAND, filled, facts, Path()))
    text, asked = read_text(path, why="no manifest is"), ReadContext(path, filled, facts)
    if is_unit(text) or _is_script(text, path):
        return _of_script(text, asked._replace(folder=Path(path).parent))
    own = _own(text, asked)
    return own if own is not None else _of_manifest(text, asked)


def _is_script(text: str, file: str) -> bool:
    """Whether a text is a script: its first line is no YAML, and its name is a script's, or it starts an engine and is no YAML."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    if _KEYED.match(next(lines, "")):
        return False
    if file.endswith(ENDINGS) or text.startswith("#!"):
        return True
    try:
        return names_engine(text) and not any(isinstance(each.data, dict) for each in documents(text, file))
    except InputError:
        return True


def _own(text: str, asked: ReadContext) -> list[FileDeployment] | None:
    """The deployments in this project's own form; None for a text in another form."""
    try:
        found = documents(text, asked.file)
    except InputError:
        return None
    if len(found) != 1 or not isinstance(found[0].data, dict) or OWN not in found[0].data:
        return None
    document = DataFile(found[0].data, asked.file, text)
    spec = validate(DeploymentFile, document)
    parts = [Part(partial(_of_own, number, spec, document, asked)) for number in range(len(spec.deployments))]
    check(*parts)
    return [part.value for part in parts]


def _of_own(number: int, spec: DeploymentFile, document: DataFile, asked: ReadContext) -> FileDeployment:
    launched, at = spec.deployments[number], (OWN, number)
    lines = {name: document.line((*at, "serving", name)) for name in launched.serving.model_fields_set}
    lines |= {name: document.line((*at, name)) for name in launched.model_fields_set}
    lines |= {"command": document.line(at), "gpus": lines.get("reserved_gpus")}
    gpu = None if launched.gpu is None else profiles.load_gpu(launched.gpu).id
    gpu = settled_gpu(gpu, lines.get("gpu"), said_gpu(asked), asked)
    replicas = asked.settled("replicas", launched.replicas, lines.get("replicas"), asked.filled.replicas)
    _check_said(launched.name, (launched.model, gpu, replicas), asked, lines["command"])
    whole = launched.model_copy(update={"gpu": gpu, "replicas": replicas})
    return FileDeployment(whole, asked.file, lines, (), spec.demand, spec.policy)


def _of_script(text: str, asked: ReadContext) -> list[FileDeployment]:
    folder = asked.folder or Path()

    def load(name: str) -> str | None:
        path = None if Path(name).is_absolute() else folder / name
        return read_text(str(path)) if path is not None and is_file(path) else None

    script = unit_script(text, asked.file, load) if is_unit(text) else script_of(text, asked.file)
    found = list(_started(script, load, asked.file))
    first = [each for each in found if not is_further_node(each)] or found
    raise_any(unfollowed([each.command for each in first if each.command], asked.file))
    raise_any(fault for each in found for fault in _closed(each, asked))
    for each in found:
        if each.replicas is None and len(found) > 1 and names_cards(each, asked.facts):
            each.replicas = 1
            each.notes.append(ONE_REPLICA)
        if each.replicas is None and asked.file == COMMAND and asked.filled.replicas is None:
            each.replicas = 1
            each.notes.append(ONE_START)
    words = [word.text for command in script.commands for word in command.words]
    return _all_of([each for each in found if not is_further_node(each)], words, asked)


def _started(script: ShellScript, load: Callable[[str], str | None], file: str) -> Iterator[Container]:
    """Yield what the commands of a script start, also by scripts beside it.

    A fact in a comment holds for the next command; some facts hold for all commands after it.
    """
    used: set[Word] = set()
    for command in script.commands:
        said = {name: word for name, word in command.said.items() if name in LASTING or word not in used}
        scripts = [word.text for word in command.words if word.text.endswith(ENDINGS)]
        beside = {name: (text, OF_ITS_OWN) for name in scripts if (text := load(name)) is not None}
        container = started(command._replace(said=said), {**beside, **script.files}, file)
        if container is not None:
            used |= set(said.values())
            yield container


def _of_manifest(text: str, asked: ReadContext) -> list[FileDeployment]:
    stated = containers(text, asked.file, asked.facts)
    raise_any(fault for each in stated for fault in _closed(each, asked))
    found = [each for each in stated if engine_of(each) is not None and not is_further_node(each)]
    engines = {(one.pod, one.at) for one in found}
    for each in found:
        each.gpus_beside = {at: gpus for at, gpus in each.gpus_beside.items() if (each.pod, at) not in engines}
    leaders = {each.path[: each.path.index(LEADER)]: each for each in found if LEADER in each.path}
    workers = {each.path[: each.path.index(WORKER)]: each for each in stated if WORKER in each.path}
    for place, leader in leaders.items():
        leader.gpus_of_others = workers[place].gpus if place in workers else None
    first = [each for each in found if WORKER not in each.path or each.path[: each.path.index(WORKER)] not in leaders]
    if len(first) == 1 and ONE_REPLICA in first[0].notes and asked.filled.replicas is not None:
        first[0].replicas = None  # of what nothing says, the user's number counts
        first[0].notes.remove(ONE_REPLICA)
    return _all_of(first, [word.text for each in stated for word in each.words], asked)


def _closed(container: Container, asked: ReadContext) -> Iterator[Fault]:
    """Yield the fault of an image that chooses engine and layout itself, and of a script that is not here."""
    script = unread_script(container)
    if script is not None:
        source = next(
            (each for place, each in container.mounts.items() if place and script.text.startswith(place)), None
        )
        where = "is not here" if source is None else f"`docker run` mounts from {source}, and which is not followed"
        what, allowed = (
            f"runs {script.text}, which {where}",
            "the command in its place, or the script beside a manifest",
        )
        yield Fault(what, asked.file, script.line, container.name, allowed)
    for part, variable in asked.facts.closed_images.items():
        if part in container.image:
            by = f"{variable} ({container.variables[variable]})" if variable in container.variables else variable
            what = f"picks its engine, precision and layout as it starts, by {by}: the file says none of them"
            allowed = f"the command that its log shows, or `{OWN}:` with its layout"
            yield Fault(what, asked.file, container.lines.get("image"), container.image, allowed)


def _all_of(containers: list[Container], words: Sequence[str], asked: ReadContext) -> list[FileDeployment]:
    """The deployments of containers. Raises InputError with the faults of all, and if there are no deployments."""
    if not containers:
        allowed = f"vllm serve, sglang.launch_server or trtllm-serve, or `{OWN}:`"
        what = "holds no command of an engine that is known"
        raise InputError(what, file=asked.file, allowed=allowed, nearest=meant(words))
    if len(containers) > (most := asked.facts.script_limits.commands):
        raise InputError(f"holds {len(containers):,} commands", file=asked.file, allowed=f"at most {most:,}")
    parts = [Part(partial(_existing, container, asked)) for container in containers]
    check(*parts)
    read_ = [part.value for part in parts]
    uses = [CardUse(container, each.cards) for container, each in zip(containers, read_, strict=True)]
    raise_any(shared(uses, asked.file))
    if note := of_profiles(uses):
        read_ = [each._replace(assumed=(*each.assumed, note)) for each in read_]
    containers, read_ = _started_by_default(containers, read_)
    read_ = list(_clashing(containers, read_))
    raise_any(_of_one_pod(containers, read_, asked.file))
    of = CONTAINERS if not all(map(is_local, containers)) else "services" if containers[0].path else COMMANDS
    together: dict[object, list[FileDeployment]] = {}
    for at, (container, each) in enumerate(zip(containers, read_, strict=True)):
        together.setdefault(
            (at if container.pod is None else ("pod", container.pod)) if of == CONTAINERS else of, []
        ).append(each)
    read_ = [each for group in together.values() for each in _as_replicas(group, of)]
    if {"prefill", "decode"} <= {each.launched.role for each in read_}:
        return read_
    # A deployment that is a pool only by its name, and has no partner, serves whole requests.
    whole = {"role": "whole"}
    return [
        each if "role" in each.lines else each._replace(launched=each.launched.model_copy(update=whole))
        for each in read_
    ]


def _started_by_default(
    containers: list[Container], read_: list[FileDeployment]
) -> tuple[list[Container], list[FileDeployment]]:
    """Those that Compose starts without a profile, with a note on the others; all of them where each has a profile."""
    default = [at for at, each in enumerate(containers) if not each.profiles]
    if not default or len(default) == len(containers):
        return containers, read_
    others = ", ".join(each.name for each in containers if each.profiles)
    note = f"services with a profile do not count, because Compose starts them only by it: {others}"
    kept = [read_[at]._replace(assumed=(*read_[at].assumed, note)) for at in default]
    return [containers[at] for at in default], kept


def _alike(launched: Launched) -> Launched:
    return launched.model_copy(update={"name": "", "replicas": None})


def _clashing(containers: Sequence[Container], read_: Sequence[FileDeployment]) -> Iterator[FileDeployment]:
    """Yield the deployments, those of commands that would listen on one port of a server with their clash.

    Commands that name cards are of one server. Of others only ports that they state are compared: each may be of a server of its
    own.
    """
    ports: dict[str, list[int | None]] = {}
    listening = []
    for each, one in zip(containers, read_, strict=True):
        says = not (each.path or each.image) and one.port.isdecimal() and bool(one.cards or "port" in one.lines)
        listening.append(ports.setdefault(one.port, []) if says else [])
        listening[-1].append(one.line("command"))
    for one, lines in zip(read_, listening, strict=True):
        numbers = ", ".join(map(str, lines))
        which = f"the commands of lines {numbers}" if len(set(lines)) > 1 else f"{len(lines)} commands"
        clash = f"{which} listen on port {one.port}: on one server only one of them starts" if len(lines) > 1 else None
        yield one._replace(clash=clash)


def _of_one_pod(containers: Sequence[Container], read_: Sequence[FileDeployment], file: str) -> Iterator[Fault]:
    """Yield the fault of each container that listens on the port of another of its pod."""
    seen: dict[tuple[int, str], int | None] = {}
    for each, one in zip(containers, read_, strict=True):
        line = one.line("port", "command")
        if each.pod is not None and one.port.isdecimal() and (each.pod, one.port) in seen:
            what = f"listens on port {one.port}, as the engine of line {seen[each.pod, one.port]} of the same pod does"
            yield Fault(what, file, line, each.name, "a port of its own for each")
        elif each.pod is not None:
            seen[each.pod, one.port] = line


def _as_replicas(deployments: Sequence[FileDeployment], of: str) -> list[FileDeployment]:
    """What one server starts as deployments; services or commands (`of`) that start the same are replicas of one deployment."""
    alike: dict[Launched, list[FileDeployment]] = {}
    for each in deployments:
        alike.setdefault(_alike(each.launched), []).append(each)
    return [_together(group, of) if len(group) > 1 else group[0] for group in alike.values()]


def _together(group: Sequence[FileDeployment], of: str) -> FileDeployment:
    """What starts the same as one deployment, named by the common prefix. Raises InputError if a comment states another number."""
    first, names = group[0], [each.launched.name for each in group]
    shared_name = os.path.commonprefix(names)  # noqa: RUF071 - of names, no paths
    name = shared_name.rstrip("-_.0123456789") or first.launched.name
    replicas, stated = sum(each.launched.replicas or 0 for each in group), first.launched.replicas
    if of == COMMANDS and stated is not None and stated > 1 and first.line("replicas") is not None:
        replicas = len(group)
        if stated != replicas:
            what, line = f"is {stated}, and {replicas} commands start the same", first.line("replicas")
            raise InputError(what, file=first.file, line=line, field="replicas", allowed=str(replicas))
    notes = [note for note in first.assumed if note not in (ONE_REPLICA, ONE_START)]
    launched = first.launched.model_copy(update={"name": name, "replicas": replicas})
    return first._replace(launched=launched, assumed=(*notes, f"{replicas} replicas: {len(group)} {of} start the same"))


# --- a deployment -----------------------------------------------------------------------------------------------------


def _existing(container: Container, asked: ReadContext) -> FileDeployment:
    """The deployment of a container. Raises InputError with all its faults and all missing facts."""
    engine = engine_of(container)
    assert engine is not None
    dialect = Part(lambda: dialect_in(engine[0], container, asked))
    source = Source(asked.file, container.variables, container.files, asked.filled.ignored, asked.folder)
    args = Part(lambda: read(dialect.value[0], container.words[engine[1] :], source))
    name = Part(lambda: model_name(args.value, container, asked))
    model = Part(lambda: model_in(name.value, args.value, container, asked))
    gpu = Part(lambda: gpu_in(container, asked))
    replicas = Part(lambda: _replicas(args.value, dialect.value[0], container, asked))
    line = container.lines.get("command")
    miscounted = any(each.remedy == WHICH_RUN for each in container.faults)
    counted = Part(lambda: replicas.value or (1 if miscounted else None))
    said = Part(lambda: _check_said(container.name, (name.value, gpu.value, counted.value), asked, line))
    told = Part(lambda: _check_told(args.value, container, asked))
    seen = Part(lambda: visible(container, asked.facts, asked.file))
    check(dialect, args, name, model, gpu, replicas, told, seen, said)
    raise_any(misread(args.value, dialect.value[0], name.value, model.value, asked.file))
    found = _data(args.value, dialect.value[0], model.value, container, asked)
    found |= {"name": container.name, "model": name.value, "gpu": gpu.value}
    ranks = found["replicas"]
    found["replicas"] = (replicas.value or 1) * ranks
    lines: dict[str, int | None] = {**container.lines}
    lines.update((term, each.line) for term, each in args.value.terms.items())
    if args.value.model is not None:
        lines["model"] = args.value.model.line
    launched = _validated(found, args.value, asked, lines)
    drafts = container.drafts or Word("", line)
    spoken = with_acceptance(launched.speculative, drafts.text or None, (asked.file, drafts.line))
    launched = launched.model_copy(update={"speculative": spoken})
    unmodelled = map(partial(_doubted, NOT_MODELLED), args.value.unmodelled)
    recalled = map(partial(_doubted, RECALLED), args.value.recalled)
    said_ = (dialect.value[1], *container.notes, _stored(launched, args.value, model.value), *unmodelled, *recalled)
    notes = tuple(note for note in said_ if note)
    again = tuple(args.value.again)
    nodes = container.pods if container.pods > 1 else nodes_of(args.value, dialect.value[0])
    passed = frozenset(args.value.passed)
    read_ = FileDeployment(
        launched, asked.file, lines, notes, again=again, nodes=nodes, passed=passed, doubt=container.doubt
    )
    read_ = read_._replace(idle=tuple(_idle(args.value, model.value)), whole=container.whole and seen.value is None)
    needed, nodes_ = layout_of(launched).gpus * ranks, nodes or 1
    gpus = gpus_of(container, seen.value, Needed(needed, ranks, nodes_), asked.file)
    launched = launched.model_copy(update={"reserved_gpus": gpus.reserved})
    cards = use_of(container, seen.value, -(-needed // nodes_), asked.facts).cards
    port = str(args.value.terms["port"].value if "port" in args.value.terms else dialect.value[0].engine.port)
    return read_._replace(launched=launched, seen=gpus.seen, cards=cards, port=port)


def _stored(launched: Launched, args: ReadArgs, model: FoundModel | None) -> str | None:
    """The precision that is assumed of a checkpoint whose name says neither it nor the model; None where something says it."""
    name = None if args.model is None else str(args.model.value)
    if model is None or is_quantised(model) or launched.precision is not None or name in (None, launched.model):
        return None
    try:
        load_model(name)
    except InputError:
        own = model.spec.quantisation.precision.upper()
        return f"{name} stores {own}, as {launched.model}; -m {launched.model}-awq would say that it is quantised"
    return None


def _doubted(what: str, term: StatedTerm) -> str:
    where = "" if term.line is None else f" (line {term.line})"
    return f"{term.flag} {term.value}{where} {what}"


def _idle(args: ReadArgs, model: FoundModel | None) -> Iterator[tuple[StatedTerm, str]]:
    """Yield the flags that change nothing of a model, each with what the model lacks for it."""
    lacks = {} if model is None else idle(model.spec)
    for term, stated in args.terms.items():
        if term in lacks:
            yield stated, lacks[term]
        elif term in ("expert_parallel", "ep") and REDUNDANT in lacks and int(stated.value) > (term == "ep"):
            yield stated, f"{lacks[REDUNDANT]} to spread"


def _check_told(args: ReadArgs, container: Container, asked: ReadContext) -> None:
    """Raise InputError with the faults of flags, and of the container's numbers unless the user states them."""
    of_numbers = [each for each in container.faults if each.remedy != WHICH_RUN or asked.filled.replicas is None]
    raise_any((*of_numbers, *args.faults))


def _replicas(args: ReadArgs, dialect: Dialect, container: Container, asked: ReadContext) -> int | None:
    """The replicas of a manifest, or the user's number. If the node rank is a variable, each pod is a node of an instance.

    Raises InputError if the nodes make no whole instances, or if file and user differ.
    """
    stated, line = container.replicas, container.lines.get("replicas")
    nodes, rank = nodes_of(args, dialect) or 1, args.terms.get("node_rank")
    if stated is not None and container.path and container.pods == 1 and rank is not None and "$" in str(rank.value):
        if stated % nodes:
            what = f"{stated} pods are no whole instances of {nodes} nodes"
            raise InputError(what, file=asked.file, line=line, field="replicas")
        stated //= nodes
    return asked.settled("replicas", stated, line, asked.filled.replicas)


def _data(
    args: ReadArgs, dialect: Dialect, model: FoundModel | None, container: Container, asked: ReadContext
) -> dict[str, Any]:
    """The settings of a deployment as plain data. Its `replicas` are those that one command starts."""
    experts = model is not None and architecture.is_moe(model.spec)
    data = data_of(args, dialect, experts=experts, file=asked.file)
    lacks = {} if model is None else idle(model.spec)
    kept = {name: value for name, value in data["serving"].items() if name not in lacks}
    serving = data["serving"] = {**kept, "engine": f"{dialect.engine.name}:{dialect.version}"}
    if model is not None and dialect.engine.holds_longest and "max_model_len" not in (*serving, *args.open):
        engine = profiles.load_engine(dialect.engine.name)[0].spec
        serving["max_model_len"] = settings.length_by_default(model.spec, engine, dialect.version)
    if model is not None and is_quantised(model):
        data.pop("precision", None)  # the flag says how to read the checkpoint
    if "precision" in container.holds:
        data.setdefault("precision", container.holds["precision"])
    data.setdefault("role", next((role for role in ("prefill", "decode") if _says(role, container)), "whole"))
    return data


def _says(role: str, container: Container) -> bool:
    """Whether a container has a role, by the names around it or by a switch of Dynamo."""
    said = " ".join((container.name, *container.path)).lower()
    return role in said or any(word.text == f"--is-{role}-worker" for word in container.words)


def _validated(data: dict[str, Any], args: ReadArgs, asked: ReadContext, lines: Mapping[str, int | None]) -> Launched:
    """The deployment from plain data. Raises InputError with each fault at the line of its flag."""
    places = {name: (line, name) for name, line in lines.items()}
    places |= {term: (stated.line, stated.flag) for term, stated in args.terms.items()}

    def place(path: tuple[str | int, ...]) -> tuple[str | None, int | None, str, str | None]:
        others = () if path == ("replicas",) else ("spec_tokens", "tp")
        names = (*map(str, reversed(path)), *others)
        line, name = next((places[each] for each in names if each in places), (None, names[0]))
        return asked.file, line, name, None

    try:
        return Launched.model_validate({name: value for name, value in data.items() if value is not None})
    except SpecError as error:
        raise InputError(faults_of(error, place)) from None


def _check_said(
    name: str, said: tuple[str | None, str | None, int | None], asked: ReadContext, line: int | None
) -> None:
    """Raise InputError for missing facts of a deployment (model, GPU type, replicas), with the options that state them."""
    missing = [entry for entry, value in zip(ASKED_FOR, said, strict=True) if value is None]
    if missing:
        what, options = (", ".join(each[at] for each in missing) for at in (0, 1))
        raise InputError(
            f"does not say {what}", file=asked.file, line=line, field=name, remedy=f"use it with {options}"
        )
