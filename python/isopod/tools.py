"""Tool definitions for language models, generated from the schemas that the server serves.

    isopod.tools.definitions("openai")                      # tools of a run: execute_python, run_command, read_file …
    isopod.tools.definitions("anthropic", source="toolkit") # tools of an execution: run_python_code, upload_file …

``Session.call`` and ``E2BToolkit.call`` take what the model sends back.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Literal, Mapping, Optional

from ._http import Client, Request, Steps, ask

__all__ = ["Definition", "Format", "Source", "adefinitions", "definitions"]

Format = Literal["openai", "openai-responses", "anthropic", "mcp"]
Source = Literal["run", "toolkit"]
Definition = dict[str, Any]


def definitions(
    format: Format = "openai",
    *,
    source: Source = "run",
    include: Optional[Iterable[str]] = None,
    exclude: Iterable[str] = (),
    api_key: Optional[str] = None,
    api_url: Optional[str] = None,
) -> list[Definition]:
    """The server's tools in the format of a model's API, in the server's order."""
    listed = Client.resolve(api_key, api_url).run(_LISTS[source]())
    return _chosen(listed, format, include, exclude)


async def adefinitions(
    format: Format = "openai",
    *,
    source: Source = "run",
    include: Optional[Iterable[str]] = None,
    exclude: Iterable[str] = (),
    api_key: Optional[str] = None,
    api_url: Optional[str] = None,
) -> list[Definition]:
    """``definitions`` without blocking the event loop."""
    listed = await Client.resolve(api_key, api_url).arun(_LISTS[source]())
    return _chosen(listed, format, include, exclude)


def shaped(tool: Mapping[str, Any], format: Format) -> Definition:
    """One of the server's tools in the format of a model's API."""
    name, description, schema = tool["name"], tool["description"], tool["parameters"]
    if format == "openai":
        return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
    if format == "openai-responses":
        return {"type": "function", "name": name, "description": description, "parameters": schema}
    if format == "anthropic":
        return {"name": name, "description": description, "input_schema": schema}
    if format == "mcp":
        return {"name": name, "description": description, "inputSchema": schema}
    raise ValueError(f"unknown format {format!r}; there are openai, openai-responses, anthropic and mcp")


def run_definitions() -> Steps[list[dict[str, Any]]]:
    return list((yield from ask(Request("GET", "/runtime/tools")))["tools"])


def toolkit_definitions() -> Steps[list[dict[str, Any]]]:
    return list((yield from ask(Request("GET", "/api/v1/toolkit"))))


_LISTS: Mapping[Source, Callable[[], Steps[list[dict[str, Any]]]]] = {
    "run": run_definitions,
    "toolkit": toolkit_definitions,
}


def _chosen(
    listed: list[dict[str, Any]], format: Format, include: Optional[Iterable[str]], exclude: Iterable[str]
) -> list[Definition]:
    names = [str(tool["name"]) for tool in listed]
    wanted = set(names if include is None else include)
    unwanted = set(exclude)
    unknown = sorted((wanted | unwanted) - set(names))
    if unknown:
        raise ValueError(f"unknown tools: {', '.join(unknown)}; there are {', '.join(names)}")
    return [shaped(tool, format) for tool in listed if tool["name"] in wanted - unwanted]
