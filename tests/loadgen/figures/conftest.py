"""Rows made up for the figures that are taken from them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from pdwatch.loadgen.row import RequestRow
from pdwatch.loadgen.transcript import Label, Outcome


def make_row(number: int = 0, sent_seconds: float = 100.0, *, seconds: float = 1.0, **changes: Any) -> RequestRow:
    """A complete request that took 0.2 s to its first of 9 tokens; its answer ended `seconds` after sending."""
    values: dict[str, Any] = {
        "request_id": f"candidate-0-measured-{number}",
        "arm": "candidate",
        "level": 4,
        "phase": 0,
        "label": Label.MEASURED,
        "user": number % 4,
        "number": number,
        "outcome": Outcome.COMPLETE,
        "outcome_detail": "",
        "status": 200,
        "finish_reason": "stop",
        "is_streamed": True,
        "scheduled_seconds": None,
        "connect_seconds": None,
        "sent_seconds": sent_seconds,
        "sent_unix_seconds": 1.7e9,
        "ended_seconds": sent_seconds + seconds,
        "request_bytes": 900,
        "response_bytes": 9_000,
        "reads": 9,
        "defects": (),
        "family": "copy",
        "session": None,
        "turn": None,
        "time_to_first_token_seconds": 0.2,
        "time_per_output_token_seconds": (seconds - 0.2) / 8,
        "end_to_end_seconds": seconds,
        "decode_window_seconds": seconds - 0.2,
        "output_tokens": 9,
        "prompt_tokens": 100,
        "chunks": 9,
        "coalesced_chunks": 0,
        "longest_inter_chunk_seconds": (seconds - 0.2) / 8,
        "inter_token_basis": "chunks",
        "inter_token_seconds": array("d", [(seconds - 0.2) / 8] * 8),
        "inter_chunk_seconds": array("d", [(seconds - 0.2) / 8] * 8),
    }
    return RequestRow(**(values | changes))


def make_failure(number: int = 0, sent_seconds: float = 100.0, **changes: Any) -> RequestRow:
    """A request that was reset 0.1 s after sending, before anything came."""
    metrics = {name: None for name in RequestRow.__slots__[RequestRow.__slots__.index("time_to_first_token_seconds") :]}
    values = {"outcome": Outcome.RESET, "outcome_detail": "Connection reset by peer", "status": None, **metrics}
    return make_row(number, sent_seconds, seconds=0.1, **(values | changes))


@pytest.fixture
def row() -> Callable[..., RequestRow]:
    """Builds complete requests; see `make_row`."""
    return make_row


@pytest.fixture
def failure() -> Callable[..., RequestRow]:
    """Builds failed requests; see `make_failure`."""
    return make_failure
