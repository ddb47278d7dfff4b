"""Where requests come from. Importing this face imports pydantic and nothing else that is heavy."""

from __future__ import annotations

from .config import (
    BfclSource,
    LongContext,
    MooncakeSource,
    OpenaiRequestsSource,
    Sessions,
    SharedPrefix,
    ShareGptSource,
    SourceConfig,
    TextSource,
    ToolCallsSource,
)
from .opening import open_source
from .work import SessionTurn, Source, Work

__all__ = [
    "BfclSource",
    "LongContext",
    "MooncakeSource",
    "OpenaiRequestsSource",
    "SessionTurn",
    "Sessions",
    "ShareGptSource",
    "SharedPrefix",
    "Source",
    "SourceConfig",
    "TextSource",
    "ToolCallsSource",
    "Work",
    "open_source",
]
