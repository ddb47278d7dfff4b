"""Errors of the embedded engine.

EngineError
├── ConfigurationError   a configuration value that cannot work
├── CheckpointError      a weights or configuration file that cannot be used
├── ContextTooLong       a request that does not fit the context or the pool
├── RequestRejected      a request this engine's role cannot serve, or a request id in use
└── TransferError        bytes of a KV transfer that do not fit what was reserved
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of the embedded engine's errors."""


class ConfigurationError(EngineError):
    """A configuration value names something that does not exist here."""


class CheckpointError(EngineError):
    """A checkpoint cannot be used; the message names the file, the defect and the remedy."""


class ContextTooLong(EngineError):
    """The prompt and the tokens asked for exceed the context length or the whole KV pool."""


class RequestRejected(EngineError):
    """The engine's role cannot serve the request, or its id is already in use."""


class TransferError(EngineError):
    """A page of a KV transfer has the wrong size, the wrong index or no reservation."""
