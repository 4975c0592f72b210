"""`llmsize mcp`: commands as tools for agents, tried with the reference client where it is installed."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from places import ROOT

from sizing.cli.main import run
from sizing.cli.mcp import NO_OPTIONS, TOOLS, called, input_schema, output_schema


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_has_the_options_of_its_command(name: str) -> None:
    properties = input_schema(name)["properties"]
    assert properties
    assert not set(properties) & set(NO_OPTIONS)
    assert all(field["description"] for field in properties.values())
    assert output_schema(name)["type"] == "object"


def test_a_call_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = called("estimate", {"workload": "chat", "gpu": "h100-sxm", "rps": 3, "no_verify": True})
    assert run(["estimate", "chat", "-g", "h100-sxm", "--rps", "3", "--no-verify", "--json"]) == code == 0
    assert json.loads(text) == json.loads(capsys.readouterr().out)


def test_a_tool_takes_several_files() -> None:
    files = [str(ROOT / "tests/golden/inputs" / name) for name in ("deploy.yaml", "deploy_short.yaml")]
    code, text = called("check", {"files": files, "demand": "chat", "no_verify": True})
    found = json.loads(text)
    assert (code, found["passed"], len(found["deployments"])) == (1, False, 2)
    assert called("check", {"files": [*files, "/dev/stdin"], "demand": "chat"})[0] == 2


def test_a_workload_can_be_written_out() -> None:
    workload = {"model": "llama-3.1-8b", "tokens": {"isl": 500, "osl": 50}, "demand": {"requests_per_s": 2}}
    code, text = called("estimate", {"workload": workload, "gpu": "h100-sxm", "no_verify": True})
    assert code == 0
    assert json.loads(text)["inputs"]["isl"] == 500


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("estimate", {"workload": "chat", "gpu": "h100-smx"}, "did you mean h100-sxm?"),
        ("estimate", {"workload": "-"}, "workload: '-' is no name"),
        ("estimate", {"workload": "/dev/stdin"}, "is no name"),
        ("estimate", {"workload": "chat", "plot": "x.png"}, "plot: is no option here"),
        ("estimate", {"workload": "chat", "gpuu": "x"}, "gpuu: is no option here"),
        ("report", {}, "'report' is no tool"),
    ],
)
def test_what_is_wrong_is_told(name: str, arguments: dict[str, Any], words: str) -> None:
    code, text = called(name, arguments)
    assert code == 2
    assert words in text


def test_the_server_needs_its_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    assert run(["mcp"]) == 2
    assert "mcp: needs the package mcp; run pip install 'llmsize[mcp]'" in capsys.readouterr().err


def test_the_reference_client_is_served() -> None:
    """The client starts the command as agents do, lists its tools and calls them; results keep to the schemas that it is told."""
    client = pytest.importorskip("mcp.client")
    stdio = pytest.importorskip("mcp.client.stdio")
    jsonschema = pytest.importorskip("jsonschema")
    import asyncio

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    started = stdio.StdioServerParameters(command=sys.executable, args=["-m", "sizing", "mcp"], env=environment)

    async def ask() -> tuple[Any, Any, Any, Any]:
        async with client.Client(stdio.stdio_client(started)) as asked:
            tools = await asked.list_tools()
            estimate = {"workload": "chat", "gpu": "h100-sxm", "no_verify": True}
            right = await asked.call_tool("estimate", estimate)
            listed = await asked.call_tool("workloads", {})
            wrong = await asked.call_tool("estimate", {"workload": "chat", "gpu": "h100-smx"})
            return tools, right, listed, wrong

    tools, right, listed, wrong = asyncio.run(ask())
    schemas = {tool.name: tool.output_schema for tool in tools.tools}
    assert tuple(schemas) == TOOLS
    assert all(tool.annotations.read_only_hint for tool in tools.tools)
    for result, name in ((right, "estimate"), (listed, "workloads")):
        assert not result.is_error
        jsonschema.validate(result.structured_content, schemas[name])
    assert right.structured_content["feasible"]
    assert wrong.is_error
    assert "did you mean h100-sxm?" in wrong.content[0].text
