"""The `llmsize` application: its commands, their help, and the handling of their failures."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from sizing import __version__
from sizing.cli.options import WAYS_TO_PAY, with_values
from sizing.cli.output import OutputError, complain, discard, files_with, flush_output
from sizing.question.options import DISAGGREGATE, POOLED, GivenOptions, broken, unpooled
from sizing.specs.errors import Fault, InputError, raise_any, unknown

LISTINGS = ("gpus", "models", "engines", "workloads", "prices")
COMPLETING = ["completion", "words"]
GROUPS = {
    "Size a service": ("init", "estimate", "compare", "curve", "sweep", "simulate"),
    "Understand an answer": ("explain", "memory", "step", "roofline", "whatif", "import", "validate", "calibrate"),
    "Plan and pay": ("plan", "cost", "report"),
    "Deploy and check": ("deploy", "check"),
    "What is known": ("gpus", "models", "engines", "workloads", "prices", "schema", "config", "mcp", "completion"),
}
# Where a command is not the function `command` of the file with its name.
PLACES = {"import": "imports:command"} | {name: f"listings:{name}" for name in LISTINGS}
BAD_VALUE = "Invalid value for"  # the beginning of a usage error about the value of an option
INFEASIBLE, BAD_INPUT = 1, 2
MOST_COMMANDS = 6  # that have an option which another command lacks
MOST_LINES, FIRST_LINES = 40, 10  # lines of faults: of very many, only the first are shown, and the others are counted
# Strings longer than any path are cut, not what ends them.
ENDLESS = re.compile(r"(\S{60})\S{340,}?(['\");:,.]*)(?!\S)")
HELP_COLUMNS = 100  # the most columns for help on a wide terminal
INTERRUPTED, READER_LEFT = 130, 141  # as a shell reports SIGINT and SIGPIPE: 128 and the signal's number


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmsize {__version__}")
        raise typer.Exit()


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Size GPU deployments for LLM inference."""


@cache
def known_commands() -> tuple[str, ...]:
    """All commands: those in groups, then each other file in this folder with a function `command`, by its name."""
    grouped = [name for names in GROUPS.values() for name in names]
    files = files_with("def command(", Path(__file__).parent)
    placed = {place.partition(":")[0] for place in PLACES.values()}
    return tuple(dict.fromkeys((*grouped, *(name for name in files if name not in placed))))


def application(names: Iterable[str] = ()) -> typer.Typer:
    """The application with the commands `names`; with all commands if none is stated."""
    app = typer.Typer(
        name="llmsize",
        cls=GroupHelp,
        help="How many GPUs an LLM service needs, how sure that is, and what it costs.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS},
    )
    app.callback()(_common)
    for name in names or known_commands():
        module, _, function = PLACES.get(name, f"{name}:command").partition(":")
        app.command(name, cls=CommandHelp)(getattr(import_module(f"sizing.cli.{module}"), function))
    return app


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. A bug shows its traceback; each fault of the user is one line.

    If the output can't be written, the exit code is 2, with one line on stderr. If the reader has closed the pipe (`| head`),
    the exit code is `READER_LEFT`, without a message.
    """
    if sys.stderr is None:  # closed (2>&-): print(file=None) would write to stdout
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the end
    try:
        if sys.stdout is None:
            raise OutputError()
        code = _run(arguments)
        flush_output()
    except OutputError as error:
        if sys.stdout is not None:
            discard(sys.stdout)
        return READER_LEFT if error.left else _bad_input([str(error)])
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        completing = list(arguments[:2]) == COMPLETING  # the words that follow belong to the line to complete
        asked = list(arguments) if completing else with_values(arguments) or ["--help"]
        in_groups = any(asked[0] in names for names in GROUPS.values())
        is_known = in_groups or asked[0] in known_commands()  # which reads the files of this folder
        if not asked[0].startswith("-") and not is_known:
            raise InputError(unknown(asked[0], "command", known_commands()))
        pools = any(word.partition("=")[0] == DISAGGREGATE for word in asked) and not completing
        if pools and is_known and asked[0] not in POOLED:
            raise InputError(unpooled(asked[0], DISAGGREGATE))
        command = typer.main.get_command(application(asked[:1] if is_known else ()))
        code = command.main(asked, prog_name="llmsize", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as exit_:
        return exit_.exit_code
    except typer.Abort:
        return INTERRUPTED
    except InputError as error:
        return _bad_input(map(str, error.faults))
    except SystemExit:  # typer's end where the reader of its help has left
        raise OutputError(BrokenPipeError()) from None
    except OSError as error:  # faults in named files are InputErrors, so this is the output or the machine itself
        raise OutputError(error) from None
    except Exception as error:
        # Usage errors are recognised by their text, because their class differs between typer versions.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if (option := getattr(error, "option_name", None)) is not None and hasattr(error, "possibilities"):
            return _bad_input([str(_no_option(asked[0], option, error))])
        spellings = getattr(getattr(error, "param", None), "opts", None)
        text = f"{spellings[0]}: {getattr(error, 'message', '')}" if spellings and BAD_VALUE in message() else message()
        return _bad_input([" ".join(text.split())])


def _no_option(command: str, option: str, error: Exception) -> Fault:
    """The fault of an unknown option: why this command has none, or the commands that have it.

    An option of no command is another tool's, for which it suggests our name, or a mistyped one: the nearest.
    """
    from sizing.question.options import other_tools

    context = getattr(error, "ctx", None)
    known = [flag for parameter in context.command.params for flag in parameter.opts] if context else []
    word = option.lstrip("-").replace("_", "-").lower()
    own = (foreign := other_tools()).get(word) or foreign.get(word.removesuffix("s"))
    if own not in known and (others := _commands_with(option)) and command in known_commands():
        refused = broken([command], GivenOptions((), {word.replace("-", "_"): True}))
        some = ", ".join(others[:MOST_COMMANDS])
        have = f"{some} {'has' if len(others) == 1 else 'have'} it"
        remedy = f"write the name alone: llmsize {command} NAME" if command in LISTINGS else have
        return next(iter(refused), Fault(f"{command} has no such option", field=option, remedy=remedy))
    possible = getattr(error, "possibilities", None) or ()
    likest = max(possible, key=lambda flag: SequenceMatcher(None, option, flag).ratio(), default=None)
    nearest = own if own in known else likest
    return Fault(f"{command} has no such option", field=option, remedy=f"see llmsize {command} --help", nearest=nearest)


def _commands_with(option: str) -> list[str]:
    commands = getattr(typer.main.get_command(application()), "commands", {})
    return [name for name, each in commands.items() if any(option in parameter.opts for parameter in each.params)]


def _bad_input(lines: Iterable[str]) -> int:
    said = list(dict.fromkeys(lines))
    shown = said if len(said) <= MOST_LINES else said[:FIRST_LINES]
    for line in shown:
        complain(ENDLESS.sub(r"\1...\2", line))
    if len(shown) < len(said):
        complain(f"and {len(said) - len(shown):,} more faults")
    return BAD_INPUT


@cache
def examples() -> dict[str, tuple[str, ...]]:
    """The examples of each command in examples.txt. A line that ends with a backslash goes on in the next."""
    text = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8")
    _, *parts = re.split(r"^\[(.+)\]\n", text, flags=re.MULTILINE)
    listed = (tuple(re.findall(r"(?:.*\\\n)*.+", lines)) for lines in parts[1::2])
    return dict(zip(parts[::2], listed, strict=True))


OWN, GENERAL = "Options", "Output"
OTHERS = "Others"  # the group of all other commands
TYPES = {"<list[str]>": "TEXT", "<str>": "TEXT", "<int range>": "INTEGER", "<int>": "INTEGER"}  # typer's names of types
ONCE = "give it once; where --help says so, it takes several values with commas"
DEFAULT = "default"  # a help text with this word already states its default


class CommandHelp(TyperCommand):
    """A command whose help has examples, and options under the headings of their panels."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line. Values are read without parsers from typer, where its result is known."""
        if not ctx.resilient_parsing and not set(args) & set(ctx.help_option_names):
            raise_any(_repeated(self.params, args))
        parameters, declared = list[Any](self.params), getattr(self.callback, "__annotations__", {})
        for option in parameters:
            option.process_value = partial(_value, option, declared.get(option.name), option.process_value)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help."""
        return _off(super().get_help_option(ctx))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description of the command, then its examples."""
        super().format_help_text(ctx, formatter)
        write_examples(self.name or "", formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, grouped by heading."""
        known = defaults()
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                flags, text = _named_type(record[0]), record[1]
                default = known.get((parameter.name or "", _heading(parameter)))
                said = DEFAULT in text.lower() or default is None
                line = (flags, text if said else f"{text} [{DEFAULT}: {default}]")
                panels.setdefault(_heading(parameter), []).append(line)
        for heading, records in panels.items():
            with formatter.section(heading):
                formatter.write_dl([(_folded(flags, formatter), text) for flags, text in records])


def _off(switch: Any) -> Any:
    """A switch that is off unless it is given; typer reads what is not given with pydantic."""
    if switch is not None:
        switch.default = False
    return switch


def _value(option: Any, declared: Any, by_typer: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """The value of an option. Typer reads even text with pydantic, which takes longer to load than half of a short run."""
    kind, stated, *_ = get_args(declared) or (None, None)
    kinds, parser = {kind, *get_args(kind)}, getattr(stated, "parser", None)
    if value is None and not option.required:
        return () if option.multiple or option.nargs == -1 else None
    if (option.required and not value) or option.callback is not None:
        return by_typer(ctx, value)
    if parser is not None and isinstance(value, str):
        return parser(value)
    if parser is None and kinds & {str, list[str]}:
        return value
    whole = isinstance(value, str) and value.isascii() and value.isdecimal() and parser is None and int in kinds
    return int(value) if whole and int(value) >= (stated.min or 0) else by_typer(ctx, value)


def _folded(flags: str, formatter: Any) -> str:
    """The spellings of an option on as many lines as the help's width needs."""
    indent = " " * 2 * formatter.indent_increment
    width = formatter.width - formatter.indent_increment
    return fill(flags, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


class GroupHelp(TyperGroup):
    """The application, whose help has the commands in groups."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help."""
        return _off(super().get_help_option(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, each with the first sentence of its help."""

        wide = max(map(len, self.commands))
        others = tuple(name for name in self.commands if not any(name in names for names in GROUPS.values()))
        for group, names in ((GROUPS | {OTHERS: others}) if others else GROUPS).items():
            with formatter.section(group):
                formatter.write_dl([(f"{name:<{wide}}", summary(self.commands[name].help or "")) for name in names])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write where to find more help."""
        formatter.write_paragraph()
        formatter.write_text("llmsize COMMAND --help has the options of a command and examples.")


def _repeated(options: Iterable[Any], args: Sequence[str]) -> Iterator[Fault]:
    """Yield the fault of each way to pay that is given more than once, whose first value would otherwise be lost.

    Ways are compared, so that two of one kind read as a list. Of another option, the last value counts, as in other commands.
    """
    words = [word.partition("=")[0] for word in args]
    for way in options:
        times = sum(word in way.opts for word in words)
        if times > 1 and getattr(way, "rich_help_panel", None) == WAYS_TO_PAY:
            yield Fault(f"is given {times} times", field=way.opts[0], remedy=ONCE)


def summary(help_text: str) -> str:
    """The first sentence of a command's help."""
    return help_text.partition("\n")[0].partition(". ")[0].rstrip(".")


def write_examples(name: str, formatter: Any) -> None:
    """Write the examples of a command, each on separate lines."""

    if name in examples():
        with formatter.section("Examples"):
            for example in examples()[name]:
                for line in example.split("\n"):
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def _named_type(flags: str) -> str:
    """The spellings of a parameter with the name of its type in the words of all other options."""
    for of_typer, name in TYPES.items():
        flags = flags.replace(of_typer, name)
    return flags


def _heading(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    own = GENERAL if parameter.name == "help" else OWN
    return str(getattr(parameter, "rich_help_panel", None) or own)


def defaults() -> dict[tuple[str, str], str]:
    """The defaults of options by parameter and panel, from planning rules or from the workload's fields."""
    from sizing.cli.options import PLAN_OPTIONS
    from sizing.question.options import QUESTION_OPTIONS

    options = (*QUESTION_OPTIONS, *PLAN_OPTIONS)
    return {(option.name, option.panel): text for option in options for text in _default(option.field or "")}


def _default(path: str) -> Iterator[str]:
    """Yield the default of a workload's field, if there is one, as a user would write it."""
    from sizing.catalog.shelf import only
    from sizing.specs.workload import Defaults, Workload

    *sections, name = path.split(".")
    spec: Any = Workload
    for section in sections:
        field = spec.model_fields.get(section)
        spec = field.annotation if field is not None else None
        if not hasattr(spec, "model_fields"):
            return
    stated = spec.model_fields[name].default if name in spec.model_fields else None
    value = stated if stated is not None else getattr(only(Defaults), name, None)
    if isinstance(value, (str, int, float)):
        yield value if isinstance(value, str) else f"{value:g}"
