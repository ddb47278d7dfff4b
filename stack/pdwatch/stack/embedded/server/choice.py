"""`tool_choice`: which tools are offered, and with what the answer has to begin.

`required` and a named function are honoured by beginning the answer in the prompt: the model goes on from an open call,
which is what a constrained decoder would have forced its first tokens to be. These tokens count as the prompt's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..tokens import CALL, CALLS
from . import fields


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`tools` as the prompt shows them (None: none are offered) and the answer's first tokens."""

    tools: Sequence[Mapping[str, Any]] | None
    begun: tuple[int, ...] = ()


def read_tool_choice(body: fields.Body) -> ToolChoice:
    """The choice of a request's body. Raises RequestFailed with status 400."""
    tools = body.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools)):
        raise fields.refused("tools must be a list of tool objects")
    choice = body.get("tool_choice")
    if choice == "none":
        return ToolChoice(None)
    if choice in (None, "auto"):
        return ToolChoice(tools or None)
    if not tools:
        raise fields.refused(f"tool_choice {str(choice)[:80]!r} asks for a call, and no tools are offered")
    if choice == "required":
        return ToolChoice(tools, (CALLS,))
    name = _function_name(choice)
    if name is None:
        raise fields.refused(f"tool_choice {str(choice)[:80]!r} is not known: use auto, none, required or a function")
    if name not in [_function_name(tool) for tool in tools]:
        raise fields.refused(f"tool_choice names the function {name[:80]!r}, which is not among the tools")
    return ToolChoice(tools, (CALLS, CALL, *name.encode("utf-8", errors="surrogatepass")))


def _function_name(tool: object) -> str | None:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None
