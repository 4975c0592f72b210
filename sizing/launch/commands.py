"""The command of a container: its words in a manifest, and the engine that they start, also by a script or by the image alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from sizing.catalog.shelf import only
from sizing.launch.container import HELD, Card, Container
from sizing.launch.documents import OF_ITS_OWN, ManifestNode, as_list, as_mapping, line_of, value_at
from sizing.launch.script_text import VARIABLE, with_variables
from sizing.launch.script_text import words as shell_words
from sizing.launch.shell import ENDINGS, EXEC, IN_LOOP, OWN_ARGUMENTS, ShellCommand
from sizing.launch.shell import script as script_of
from sizing.launch.terms import Word, engine_names, flags_of
from sizing.specs.errors import Fault, InputError, nearest, unknown
from sizing.specs.launch import Charts, LaunchFacts

COMMANDS = ("entrypoint", "command", "args")
_OF_SHELL = re.compile(r"(?<!\$)\$\{?([A-Za-z_]\w*)\}?")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def words_of(node: ManifestNode, charts: Charts) -> Iterator[Word]:
    """Yield the words of a container's command: the items of lists, and text split as in a shell; and those of flags by keys."""
    yield from map(_unescaped, _stated(node)) if node.of_compose else _stated(node)
    for marked, name in charts.keyed.items():
        for key, value in as_mapping(node.own.get(name) if marked in node.own else None).items():
            if key in charts.further_flags:
                yield from (Word(str(each), node.line(name, key)) for each in as_list(value))
            elif key not in charts.no_flags:
                yield from _flag(key, value, node.line(name, key), off=name in charts.off)


def not_written(node: ManifestNode, charts: Charts) -> Iterator[str]:
    """Yield the assumption on each key that is false, for which a chart may write a flag or nothing."""
    for name in charts.keyed.values():
        for key, value in as_mapping(node.own.get(name) if name not in charts.off else None).items():
            if value is False and key not in charts.no_flags:
                yield f"{key}: false (line {node.line(name, key)}) is taken as no flag, as what the chart writes is not known"


def entered_twice(stated: Sequence[Word], image: str, file: str, facts: LaunchFacts) -> Iterator[Fault]:
    """Yield the fault of arguments that start a server or a shell, given to an image whose own command is the server."""
    first = stated[0] if stated else Word("", None)
    words = (words for part, words in facts.serving_images.items() if part in image)
    if first.text.rpartition("/")[2] in next(words, ()):
        what = f"is an argument of the server that {image.partition('@')[0]} starts itself, which refuses it"
        yield Fault(what, file, first.line, first.text, "the words as `command`, or as the entrypoint of Docker")


def refused(node: ManifestNode, charts: Charts) -> Iterator[Fault]:
    """Yield the fault of each key with which a chart starts something that is not read."""
    for key, what in charts.refused.items():
        if node.own.get(key):
            yield node.fault(what, key, allowed="`deployments:` with its layout")
    per_worker = value_at(node.own, *charts.bundle_of_worker, "GPU")
    if per_worker not in (None, 1):
        what = f"is {per_worker} GPUs for each worker, which are not counted"
        yield node.fault(what, *charts.bundle_of_worker, allowed="`bundles`, or 1 GPU for each")


def switched_off(node: ManifestNode, charts: Charts) -> Word | None:
    """The key by which a chart makes nothing of a container, as its path and its line; None if the chart makes it."""
    for depth in range(len(node.above), 0, -1):
        around, path = as_mapping(node.above[depth - 1]), node.path[: depth - 1]
        for key in charts.switches:
            if around.get(key) is False:
                return Word(".".join(map(str, (*path, key))), line_of(node.document, (*path, key)))
    return None


def of_shell(node: ManifestNode, variables: Mapping[str, str]) -> Iterator[Fault]:
    """Yield the fault of each word with a variable in the form of a shell, which does not read the items of a list."""
    for name in COMMANDS:
        for number, each in enumerate(as_list(node.own.get(name))):
            spaced = isinstance(each, str) and bool(set(each) & set(" \n"))  # may be the text of a shell
            for found in () if spaced else VARIABLE.finditer(str(each)):
                named = found[2] or found[6]
                if found["rule"] or named in variables:
                    what = f"holds {found[0]}, which no shell replaces here"
                    allowed = f"$({named}) of its environment, or a value"
                    yield node.fault(what, name, number, allowed=allowed, field=name)


def of_compose(node: ManifestNode, variables: Mapping[str, str]) -> Iterator[Fault]:
    """Yield the fault of each command with a variable of the container, which Compose does not read: it has its shell and .env."""
    for name in ("command", "entrypoint"):
        found = next((each for each in _OF_SHELL.finditer(str(node.own.get(name))) if each[1] in variables), None)
        if found:
            what = f"takes ${found[1]} of Compose's shell or .env, not of the service's environment"
            yield node.fault(what, name, allowed="its value")


def _stated(node: ManifestNode) -> Iterator[Word]:
    for name in COMMANDS:
        value = node.own.get(name)
        if isinstance(value, str):
            yield from shell_words(value, node.file, node.line(name) or 1)
        elif isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value):
            for number, each in enumerate(value):
                spot = node.document.spots.get((*node.path, name, number))
                text = None if spot is None else spot.text
                yield Word(str(each) if text is None else text, node.line(name, number))


def _flag(key: str, value: object, line: int | None, *, off: bool) -> Iterator[Word]:
    """Yield the flag for a key, such as `tensorParallelSize: 2` or `enforce_eager: true`; with `off` also for one that is false."""
    flag = f"--{_CAPITAL.sub('-', key).lower().replace('_', '-')}"
    if value is True or (value is False and off):
        yield Word(flag if value else flag.replace("--", "--no-", 1), line)
    elif isinstance(value, list):
        yield from (Word(str(each), line) for each in (flag, *value))
    elif value not in (False, None, ""):
        yield Word(f"{flag}={json.dumps(value) if isinstance(value, dict) else value}", line)


def _unescaped(word: Word) -> Word:
    """A word of Compose; in the text of a shell, `$$` is a variable of the container."""
    return word._replace(text=word.text.replace("$$", "$")) if set(word.text) & set(" \n") else word


def parallel(
    holders: Sequence[Mapping[str, object]], words: Sequence[Word], line: int | None, charts: Charts
) -> Iterator[Word]:
    """Yield the flags that a chart or a controller adds for `parallelism: {tensor: 4, expert: true}`."""
    stated_ = (value_at(each, name) for each in holders for name in ("parallelism", charts.workers))
    sizes: dict[str, object] = next((each for each in stated_ if isinstance(each, dict)), {})
    given = {word.text.partition("=")[0] for word in words}
    for name, flag in charts.parallel.items():
        if sizes.get(name) is True and flag not in given:
            yield Word(flag, line)
        elif sizes.get(name) not in (None, False) and flag not in given:
            yield from (Word(flag, line), Word(str(sizes[name]), line))


def unknown_sizes(node: ManifestNode, charts: Charts) -> Iterator[Fault]:
    """Yield the fault of each key of `parallelism` that an LLMInferenceService does not have."""
    for depth in range(len(node.above), 0, -1):
        sizes = value_at(node.above[depth - 1], "parallelism")
        if isinstance(sizes, dict):
            for key in sizes:
                if str(key) not in (*charts.parallel, *charts.other_sizes):
                    line = line_of(node.document, (*node.path[: depth - 1], "parallelism", key))
                    fault = unknown(str(key), "key of parallelism", charts.parallel, field=f"parallelism.{key}")
                    yield replace(fault, file=node.file, line=line)
            return


RUNNERS = ("docker", "podman", "nerdctl")
STARTS = {"run", "create", "exec"}  # commands of a runner before what a container runs
NO_IMAGE = ("-", "/", ".", "~", "$")  # how flags and paths begin
GPUS, DEVICE, ENTRYPOINT, MOUNTS = (
    "--gpus",
    "--device",
    "--entrypoint",
    ("-v", "--volume", "--mount"),
)  # a runner's flags
RUN_BY = ("bash", "sh", "dash", "ash", "zsh", "exec", "source", ".", "tini", "dumb-init", "nohup")  # run what follows
_OF_HUB = re.compile(r"[\w.-]+/[\w.-]+")  # a name of the Hugging Face Hub: ORGANISATION/MODEL
RUNS = "the command that runs, in quotes or in a script of its own"
RUNS_OFTEN = f"{RUNS}, with --replicas for how many the loop starts"
_VARIABLE = re.compile(r"\$[({]?([A-Za-z_]\w*)[)}]?\Z")


def names_engine(text: str) -> bool:
    """Whether a text has the first word of a command that starts an engine."""
    return any(word in text for word in (*RUNNERS, *(phrase.split()[0] for phrase in _phrases())))


def _phrases() -> Iterator[str]:
    for name in engine_names():
        yield from flags_of(name).serves


def _named(words: Sequence[Word]) -> tuple[str, int] | None:
    """The engine of the command in `words`, and the number of words up to its end; None for no known engine."""
    names = [word.text.rpartition("/")[2] for word in words]
    for name in engine_names():
        for wanted in map(str.split, flags_of(name).serves):
            ends = range(len(wanted), len(names) + 1)
            if end := next((end for end in ends if names[end - len(wanted) : end] == wanted), None):
                return name, end
    return None


def engine_of(container: Container) -> tuple[str, int] | None:
    """The engine that a container runs, and the number of words before its flags; None for no known engine."""
    inside = None if _named(container.words) else _within(container)
    if inside is not None:
        container.words = inside
    found = _named(container.words)
    if found is not None or container.keyed:
        return found or ("vllm", 0)
    first = container.words[0].text if container.words else "-"
    own = first.startswith("-") or (container.entered and _OF_HUB.fullmatch(first) is not None)
    imaged = _runs(container.image) if own else None
    return None if imaged is None else (imaged, 0)


class Image(NamedTuple):
    """A container image: its repository without the registry's port, and its tag, which may be empty."""

    repository: str
    tag: str

    @property
    def name(self) -> str:
        """The last part of the repository."""
        return self.repository.rpartition("/")[2]


def image_of(text: str) -> Image:
    """The image that a text names: `registry:5000/vllm:v0.9.2@sha256:...`. Neither a port nor a digest is a tag."""
    folders, slash, named = text.partition("@")[0].rpartition("/")
    name, _, tag = named.partition(":")
    return Image(f"{folders}{slash}{name}", tag)


def _runs(text: str) -> str | None:
    """The engine of a container image, by its name; None for any other."""
    image = image_of(text)
    runs = (name for name in engine_names() if any(part in image.repository for part in flags_of(name).images))
    return next(runs, image.name if image.name in engine_names() else None)


def _within(container: Container) -> tuple[Word, ...] | None:
    """The words of the engine's command in a script that a container runs; None without one.

    Commands of further nodes do not count beside others. What is not followed, and a second command, are faults of the container.
    """
    depth = only(LaunchFacts).script_limits.scripts
    found = list(_commands(container.words, container.variables, container, depth))
    first = [each for each in found if not _is_further(each.words, each.variables)] or found
    if not first:
        return None
    told = list(unfollowed(first, container.file, container.name))
    texts = [[with_variables(word.text, each.variables) for word in each.words] for each in first]
    if not told and any(each != texts[0] for each in texts):
        lines = ", ".join(str(each.words[0].line) for each in first)
        what = f"runs a script with several commands of engines, of lines {lines}: which of them count is not known"
        allowed = "a script with one command, or a container for each"
        told.append(Fault(what, container.file, first[0].words[0].line, container.name, allowed))
    container.faults += told
    container.variables |= first[0].variables
    container.notes += loaded(first[0])
    return first[0].words


def unfollowed(commands: Sequence[ShellCommand], file: str, name: str | None = None) -> Iterator[Fault]:
    """Yield the fault of each engine's command of a script that what is not followed may change, and of those that do not all run."""
    read_ = (*only(LaunchFacts).visible_devices, *dict.fromkeys(_read_by_engines()))
    for each in commands:
        if why := each.unfollowed(read_):
            allowed = RUNS_OFTEN if why.startswith(IN_LOOP) else RUNS
            yield Fault(f"{why}, which is not followed", file, each.words[0].line, name, allowed)
    apart = next((each.condition for each in commands if each.condition), None)
    ends = any(each.ends for each in commands[:-1])
    if len(commands) > 1 and (apart or ends):
        lines = [each.words[0].line for each in commands]
        why = apart or f"`{EXEC}` of line {next(each for each in commands if each.ends).words[0].line}"
        what = f"has commands of engines in lines {', '.join(map(str, lines))}, and {why} decides which of them run, which is not followed"
        yield Fault(what, file, lines[0], name, RUNS)


def loaded(command: ShellCommand) -> list[str]:
    """The assumption on what a script loads before a command."""
    return [f"{command.loaded} is taken to set nothing that the engine reads"] if command.loaded else []


def _read_by_engines() -> Iterator[str]:
    """Yield the variables that engines read."""
    yield from (row.env for name in engine_names() for row in flags_of(name).flags if row.env)


def _commands(
    words: Sequence[Word], variables: Mapping[str, str], container: Container, depth: int
) -> Iterator[ShellCommand]:
    """Yield the engine's commands of the scripts that words run: a text, as after `bash -c`, or a file that a container mounts."""
    run = _run(words)
    for at, word in enumerate(words if depth else ()):
        held = (word.text, (word.line or 1) + ("\n" in word.text)) if set(word.text) & set(" \n") else None
        given = words[at + 2 :]  # after the name of the script
        if held is None and at == run:
            held = container.files.get(word.text) or container.files.get(word.text.rpartition("/")[2])
            given = words[at + 1 :]
        if held is None:
            continue
        try:
            name = word.text if held[1] == OF_ITS_OWN else container.file
            own = {str(number): each.text for number, each in enumerate(given, 1)}
            script = script_of(held[0], name, max(held[1], 1), {**variables, **own})
        except InputError:
            if names_engine(held[0]):
                raise
            continue
        container.files |= script.files
        for command in script.commands:
            passed = [
                part for each in command.words for part in (given if each.text in OWN_ARGUMENTS and given else (each,))
            ]
            if held[1] == OF_ITS_OWN:
                passed = [each._replace(line=word.line) for each in passed]
            whole = command._replace(words=tuple(passed))
            if _named(whole.words):
                yield whole
            else:
                yield from _commands(whole.words, whole.variables, container, depth - 1)


def unread_script(container: Container) -> Word | None:
    """The script that a container with an engine's image runs, and that is not beside or inside its file; None without one."""
    texts = [Word(text, word.line) for word in container.words for text in word.text.split()]
    at = _run(texts)
    run = Word("") if at is None else texts[at]
    here = {run.text, run.text.rpartition("/")[2]} & container.files.keys()
    if here or not run.text.endswith(ENDINGS) or _runs(container.image) is None or engine_of(container) is not None:
        return None
    return run


def _run(words: Sequence[Word]) -> int | None:
    """The place of the word that names what runs, after a shell and its flags; None where flags are those of the image's own command."""
    runs = (at for at, word in enumerate(words) if word.text.rpartition("/")[2] not in RUN_BY and word.text[:1] != "-")
    return next(runs, None) if words and words[0].text[:1] != "-" else None


def started(command: ShellCommand, files: Mapping[str, tuple[str, int]], file: str) -> Container | None:
    """The container that a command starts, if it starts an engine: directly, or by the engine's image. Else None."""
    words, said = tuple(word for word in command.words if word.text not in OWN_ARGUMENTS), command.said
    name = said["name"].text if "name" in said else "deployment"
    found = Container(
        name, (), words, variables=dict(command.variables), files=dict(files), notes=loaded(command), file=file
    )
    if len(words) < len(command.words):
        found.notes.append("the script is started without arguments: those that it passes on are not known")
    if not words:
        return None
    found.command = command
    found.lines = {"command": words[0].line, **{name: word.line for name, word in said.items()}}
    found.labels = tuple(said[name].text for name in ("gpu",) if name in said)
    if "replicas" in said and said["replicas"].text.isdecimal():
        found.replicas = int(said["replicas"].text)
    found.drafts = said.get("speculative")
    found.holds = {name: said[name].text for name in HELD if name in said}
    if "engine" in said:
        found.engine, found.lines["image"] = said["engine"].text, said["engine"].line
    if words[0].text.rpartition("/")[2] not in RUNNERS:
        return found if engine_of(found) else None
    images = [at for at, word in enumerate(words) if not word.text.startswith(NO_IMAGE) and _runs(word.text)]
    if not images or STARTS.isdisjoint(word.text for word in words[: images[-1]]):
        return None
    tagged = (at for at in images if set(words[at].text) & set("/:") and ":/" not in words[at].text)
    at = next(tagged, images[0])  # else a name of the container or of a volume would do
    found.image, found.words, found.lines["image"] = words[at].text, words[at + 1 :], words[at].line
    given = [word.text for word in words[:at]]
    _given(found, given)
    found.entered = not any(word.startswith(ENTRYPOINT) for word in given)
    if found.entered:
        found.faults += entered_twice(found.words, found.image, file, only(LaunchFacts))
    return found if engine_of(found) or unread_script(found) else None


def _given(container: Container, words: Sequence[str]) -> None:
    """Record the variables and the GPUs that a runner gives to a container."""
    for word, following in pairwise((*words, "")):
        flag, joined, value = word.partition("=") if word.startswith("--") else (word, "", "")
        value = value if joined else following
        name, is_set, text = value.strip("\"'").partition("=")
        if flag in ("-e", "--env") and is_set:
            container.variables[name] = text
        elif flag in MOUNTS:
            source, place, *_ = (
                *(part.partition("=")[2] or part for part in re.split("[:,]", value) if part != "type=bind"),
                "",
            )
            container.mounts[place] = source
        elif flag == DEVICE and value.startswith(only(LaunchFacts).device_names):
            card = value.partition("=")[2]
            container.whole, container.requested = container.whole or card == "all", True
            container.cards += () if card == "all" else (Card(card),)
        elif flag == GPUS:
            container.requested, container.whole = True, name == "all"
            container.gpus = int(name) if name.isdecimal() else None
            container.cards = tuple(map(Card, text.strip("\"'").split(","))) if name == "device" else ()


def is_further_node(container: Container) -> bool:
    """Whether a command starts a further node of an instance that another command starts."""
    return _is_further(container.words, container.variables)


def _is_further(words: Sequence[Word], variables: Mapping[str, str]) -> bool:
    texts = [text for word in words for text in word.text.split("=", 1)]
    names = [_VARIABLE.match(text) for text in texts]
    values = [variables.get(name[1], text) if name else text for name, text in zip(names, texts, strict=True)]
    ranks = [value for flag, value in pairwise(values) if flag == "--node-rank"]
    return "--headless" in texts or any(rank.isdecimal() and int(rank) > 0 for rank in ranks)


def meant(words: Sequence[str]) -> str | None:
    """The engine command that is most similar to the words."""
    known = list(_phrases())
    most = only(LaunchFacts).script_limits.tried
    tried = (" ".join(words[at : at + count]) for at in range(min(len(words), most)) for count in (2, 1))
    return next((near for text in tried if (near := nearest(text, known))), None)
