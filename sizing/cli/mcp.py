"""`llmsize mcp`: the commands as tools of a Model Context Protocol server over standard input and output, for agents.

A tool is a command with its options by name. No tool writes a file. The server needs the extra `llmsize[mcp]`.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from sizing import __version__
from sizing.cli.main import LISTINGS, application, run, summary
from sizing.specs.errors import InputError

Json = dict[str, Any]
TOOLS = (
    "estimate", "compare", "memory", "step", "roofline", "whatif", "simulate", "curve", "cost", "plan", "check",
    "explain", *LISTINGS,
)  # fmt: skip
# Options that write a file, set the output format, or are for a terminal.
NO_OPTIONS = ("format", "json", "quiet", "verbose", "plot", "requests_out", "yaml", "help", "others", "jobs")
INSTRUCTIONS = (
    "Sizes GPUs for LLM inference. estimate finds the fewest GPUs for a demand within latency limits; workloads, gpus and models list "
    "what is known by name; explain describes a term. All tools only read."
)


def command() -> None:
    """Serve the commands to agents as tools (MCP).

    Agents start it with the command llmsize and the argument mcp. It speaks the Model Context Protocol over standard input and
    output. The tools only read. It needs llmsize[mcp].
    """
    try:
        import_module("mcp.server.lowlevel")
    except ImportError:
        raise InputError("needs the package mcp", field="mcp", remedy="run pip install 'llmsize[mcp]'") from None
    import asyncio

    asyncio.run(_serve())


async def _serve() -> None:
    stdio = import_module("mcp.server.stdio")
    served = server()
    async with stdio.stdio_server() as (read, write):
        await served.run(read, write, served.create_initialization_options())


def server() -> Any:
    """The server with its tools, not yet connected to a transport."""
    lowlevel, types = import_module("mcp.server.lowlevel"), import_module("mcp_types")
    anyio = import_module("anyio")
    one_at_a_time = anyio.Lock()  # because the printed output of a command is captured

    async def list_tools(context: Any, parameters: Any) -> Any:
        read_only = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name, description=described(name), input_schema=input_schema(name), output_schema=output_schema(name),
                    annotations=read_only,
                )
                for name in TOOLS
            ]
        )  # fmt: skip

    async def call_tool(context: Any, parameters: Any) -> Any:
        async with one_at_a_time:
            code, text = await anyio.to_thread.run_sync(called, parameters.name, parameters.arguments or {})
        content = [types.TextContent(type="text", text=text)]
        if code > 1:
            return types.CallToolResult(content=content, is_error=True)
        return types.CallToolResult(content=content, structured_content=json.loads(text))

    return lowlevel.Server(
        "llmsize", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


@cache
def _command(name: str) -> Any:
    app: Any = typer.main.get_command(application([name]))
    return app.commands[name]


def _parameters(name: str) -> Iterator[Any]:
    return (one for one in _command(name).params if one.name not in NO_OPTIONS)


def described(name: str) -> str:
    """The description of a tool: the help of its command."""
    text = str(_command(name).help or "")
    return text if len(text) < 600 else summary(text)


def input_schema(name: str) -> Json:
    """The schema of a command's options by name. A workload may also be an object."""
    properties: Json = {}
    for one in _parameters(name):
        kind: Json = {"type": ["string", "number"]}
        if one.param_type_name == "option" and (one.is_flag or one.secondary_opts):
            kind = {"type": "boolean"}
        elif one.multiple or one.nargs == -1:
            kind = {"type": "array", "items": {"type": "string"}}
        elif one.name == "workload":
            kind = {"type": ["string", "object"]}
        properties[one.name] = {**kind, "description": str(getattr(one, "help", None) or one.name)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def output_schema(name: str) -> Json:
    """The schema of a command's result."""
    from sizing.report.schemas import schema

    return {"type": "object", **schema("listing" if name in LISTINGS else name)}


def called(name: str, arguments: Mapping[str, Any]) -> tuple[int, str]:
    """The exit code and the printed text of a command: JSON, or the faults for code 2."""
    if name not in TOOLS:
        return 2, f"{name!r} is no tool; allowed: {', '.join(TOOLS)}"
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        try:
            words = list(_words(name, arguments, Path(folder)))
        except InputError as error:
            return 2, "\n".join(map(str, error.faults))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([name, *words, "--json"])
    return code, out.getvalue() if code < 2 else err.getvalue()


def _words(name: str, arguments: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield the command line of a call.

    Raises InputError for an unknown option, and for standard input, which the protocol uses.
    """
    known = {one.name: one for one in _parameters(name)}
    for key, value in arguments.items():
        if key not in known:
            raise InputError("is no option here", field=key, allowed=", ".join(known))
        one = known[key]
        if isinstance(value, dict):
            path = folder / "workload.yaml"
            path.write_text(json.dumps(value), encoding="utf-8")
            value = str(path)
        if one.param_type_name == "argument":
            for each in value if isinstance(value, list) else [value]:
                if str(each).startswith(("-", "/dev/")):
                    allowed = "a name, a file, or a workload as an object"
                    raise InputError(f"{each!r} is no name", field=key, allowed=allowed)
                yield str(each)
        elif isinstance(value, bool):
            yield from one.opts[:1] if value else one.secondary_opts[:1]
        else:
            for each in value if isinstance(value, list) else [value]:
                yield f"{one.opts[0]}={each}" if one.opts[0].startswith("--") else f"{one.opts[0]}{each}"
