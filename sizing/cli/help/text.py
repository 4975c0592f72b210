"""The help of commands: options under headings with their defaults, examples, and commands in groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill
from typing import Any

from typer.core import TyperCommand, TyperGroup

from sizing.cli.options import WAYS_TO_PAY
from sizing.specs.errors import Fault, raise_any

OWN, GENERAL = "Options", "Output"
OTHERS = "Others"  # the group of all other commands
TYPES = {"<list[str]>": "TEXT", "<str>": "TEXT", "<int range>": "INTEGER", "<int>": "INTEGER"}  # typer's names of types
ONCE = "give it once; where --help says so, it takes several values with commas"
DEFAULT = "default"  # a help text with this word already states its default


class CommandHelp(TyperCommand):
    """A command whose help has examples, and options under the headings of their panels."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line. Options that it does not name keep their defaults, without parsers from typer.

        For help and faults, which need all options, the whole command is parsed.
        """
        every, named = self.params, [option for option in self.params if _may_be_named(option, args)]
        if not set(args) & set(ctx.help_option_names):
            if not ctx.resilient_parsing:
                raise_any(_repeated(named, args))
            self.params = named
            try:
                rest: list[str] = super().parse_args(ctx, list(args))
            except Exception:  # parsed again below, so that the fault knows all options
                pass
            else:
                ctx.params |= {option.name: option.get_default(ctx) for option in every if option not in named}
                return rest
            finally:
                self.params = every
        return super().parse_args(ctx, args)

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


def _folded(flags: str, formatter: Any) -> str:
    """The spellings of an option on as many lines as the help's width needs."""
    indent = " " * 2 * formatter.indent_increment
    width = formatter.width - formatter.indent_increment
    return fill(flags, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


class GroupHelp(TyperGroup):
    """The application, whose help has the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, each with the first sentence of its help."""
        from sizing.cli.help.examples import GROUPS

        wide = max(map(len, self.commands))
        grouped = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in self.commands if name not in grouped)
        for group, names in ((GROUPS | {OTHERS: others}) if others else GROUPS).items():
            with formatter.section(group):
                formatter.write_dl([(f"{name:<{wide}}", summary(self.commands[name].help or "")) for name in names])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write where to find more help."""
        formatter.write_paragraph()
        formatter.write_text("llmsize COMMAND --help has the options of a command and examples.")


def _may_be_named(parameter: Any, args: Sequence[str]) -> bool:
    """Whether `args` may set a parameter (also among joined short options), or the parameter needs typer in any case."""
    if parameter.param_type_name == "argument" or parameter.required or parameter.multiple:
        return True
    short = [name[1:] for name in parameter.opts if len(name) == len("-g")]
    return bool(parameter.default) or any(
        word.startswith((*parameter.opts, *parameter.secondary_opts))
        or (word[:1] == "-" != word[1:2] and any(name in word for name in short))
        for word in args
    )


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
    from sizing.cli.help.examples import EXAMPLES

    if name in EXAMPLES:
        with formatter.section("Examples"):
            for example in EXAMPLES[name]:
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
