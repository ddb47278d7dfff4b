"""What can go wrong while judging; every message names the value and the remedy."""

from __future__ import annotations


class CorrectnessError(Exception):
    """Base of all errors of this portion."""


class BoundsError(CorrectnessError, ValueError):
    """Counts or a confidence for which no bound exists."""


class StrictJsonError(CorrectnessError, ValueError):
    """Text that is not one JSON value under the strict rules; `code` names the broken rule."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class ReferenceFailure(CorrectnessError):
    """Base of what can go wrong with the eager reference."""


class ReferenceUnavailable(ReferenceFailure):
    """The reference cannot be reached, or answers as no healthy reference does; nothing more can be scored."""


class ReferenceRefused(ReferenceFailure):
    """The reference refused this one request (a 4xx); others can still be scored."""


class ReferenceMismatch(ReferenceFailure):
    """The reference serves something else than the candidate; `fields` names what differs."""

    def __init__(self, message: str, fields: tuple[str, ...]) -> None:
        super().__init__(message)
        self.fields = fields


class NotStored(ReferenceFailure):
    """A stored reference holds no score for these tokens."""


class JournalError(CorrectnessError):
    """A score journal that cannot be read or does not belong to this reference."""
