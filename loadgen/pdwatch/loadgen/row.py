"""One request in figures: what is left of it once its bytes are understood."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import orjson

from .assembly import Assembled
from .errors import JournalCorrupt
from .frames import FrameWriter, read_frames
from .metrics import RequestMetrics, TokenBasis
from .transcript import Label, Outcome, Transcript

ROWS_NAME: Final = "requests.jsonl.zst"
LARGEST_ROW_BYTES: Final = 2**20

# an example of a failure is told with the figures; the whole of it is in the transcript.
_LONGEST_DETAIL: Final = 300


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request. Times are monotonic seconds; None is "no value". The metrics are described by METRICS.

    `defects` are the codes of its protocol defects, `session` and `turn` its place in a conversation, `family` what
    kind of work its source says it is, `expects` what its answer should be where that is not the usual one.
    """

    request_id: str
    arm: str
    level: int
    phase: int
    label: Label
    user: int
    number: int
    outcome: Outcome
    outcome_detail: str
    status: int | None
    finish_reason: str | None
    is_streamed: bool
    scheduled_seconds: float | None
    connect_seconds: float | None
    sent_seconds: float
    sent_unix_seconds: float
    ended_seconds: float
    request_bytes: int
    response_bytes: int
    reads: int
    defects: tuple[str, ...]
    family: str | None
    session: str | None
    turn: int | None
    expects: str | None = None
    time_to_first_token_seconds: float | None = None
    time_to_first_visible_token_seconds: float | None = None
    time_to_first_reasoning_seconds: float | None = None
    time_to_first_content_seconds: float | None = None
    time_to_first_call_seconds: float | None = None
    time_per_output_token_seconds: float | None = None
    end_to_end_seconds: float | None = None
    decode_window_seconds: float | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens_per_second: float | None = None
    normalised_end_to_end_seconds: float | None = None
    schedule_lag_seconds: float | None = None
    scheduled_time_to_first_token_seconds: float | None = None
    scheduled_end_to_end_seconds: float | None = None
    chunks: int | None = None
    coalesced_chunks: int | None = None
    longest_inter_chunk_seconds: float | None = None
    inter_token_basis: TokenBasis | None = None
    inter_token_seconds: array[float] | None = None
    inter_chunk_seconds: array[float] | None = None

    @property
    def due_seconds(self) -> float:
        """When it should have been sent, by a schedule that it may have; else when it was."""
        return self.sent_seconds if self.scheduled_seconds is None else self.scheduled_seconds

    @property
    def due_lag_seconds(self) -> float:
        """How long after that it was sent."""
        return self.sent_seconds - self.due_seconds

    @property
    def is_refusal_wanted(self) -> bool:
        """Whether an HTTP error of the client's making is what its answer should be."""
        return self.expects == Outcome.HTTP_ERROR

    @property
    def is_expected_error(self) -> bool:
        """Whether it was refused as it should be. An error that the server blames itself for (5xx) is none."""
        is_refused = self.outcome is Outcome.HTTP_ERROR and self.status is not None and 400 <= self.status < 500
        return self.is_refusal_wanted and is_refused

    @property
    def is_failure(self) -> bool:
        """Whether it failed: it is neither complete, nor given up on by us, nor refused as it should be."""
        return self.outcome not in (Outcome.COMPLETE, Outcome.CANCELLED) and not self.is_expected_error

    def to_record(self) -> dict[str, Any]:
        """As JSON values, without the gaps between tokens and chunks, which follow from the transcript."""
        return {name: getattr(self, name) for name in _RECORDED}


class RowWriter(FrameWriter[RequestRow]):
    """Appends rows to a file, which it makes when there is none. Use from one thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, lambda row: orjson.dumps(row.to_record(), option=orjson.OPT_APPEND_NEWLINE))


def read_rows(path: Path) -> Iterator[RequestRow]:
    """Each row of a file, without its gaps; a last one that is cut off is left out.

    Raises JournalCorrupt for damage anywhere else, and OSError.
    """
    for number, line in enumerate(read_frames(path, LARGEST_ROW_BYTES)):
        try:
            yield decode_row(line)
        except (ValueError, KeyError, TypeError) as error:
            raise JournalCorrupt(
                f"{path}: record {number} is no request ({error}); keep only the records before it"
            ) from error


def decode_row(line: bytes) -> RequestRow:
    """One record of a file. Raises ValueError, KeyError or TypeError for anything else."""
    values = orjson.loads(line)
    values["label"], values["outcome"] = Label(values["label"]), Outcome(values["outcome"])
    values["defects"] = tuple(values["defects"])
    return RequestRow(**values)


def row_of(transcript: Transcript, assembled: Assembled, metrics: RequestMetrics) -> RequestRow:
    """The row of a request that has ended."""
    task = transcript.task
    session = transcript.session
    expects = transcript.provenance.get("expects")
    family = transcript.provenance.get("family", None if task is None else task.family)
    return RequestRow(
        request_id=transcript.request_id,
        arm=transcript.arm,
        level=transcript.level,
        phase=transcript.phase,
        label=transcript.label,
        user=transcript.user,
        number=transcript.number,
        outcome=transcript.outcome,
        outcome_detail=_whole(transcript.outcome_detail[:_LONGEST_DETAIL]),
        status=transcript.status,
        finish_reason=None if assembled.finish_reason is None else _whole(assembled.finish_reason),
        is_streamed=transcript.is_streamed,
        scheduled_seconds=transcript.scheduled_seconds,
        connect_seconds=transcript.connect_seconds,
        sent_seconds=transcript.sent_seconds,
        sent_unix_seconds=transcript.sent_unix_seconds,
        ended_seconds=transcript.ended_seconds,
        request_bytes=len(transcript.sent_body.encode("utf-8", "surrogateescape")),
        response_bytes=len(transcript.received.data),
        reads=len(transcript.received.ends),
        defects=tuple(defect.code for defect in assembled.defects),
        family=None if family is None else str(family),
        session=None if session is None else session.session_id,
        turn=None if session is None else session.index,
        expects=None if expects is None else str(expects),
        **{name: getattr(metrics, name) for name in _METRICS},
    )


def _whole(text: str) -> str:
    """The text with halves of surrogate pairs, which no file of UTF-8 holds, replaced."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_METRICS: Final = tuple(field.name for field in fields(RequestMetrics))
_RECORDED: Final = tuple(
    field.name for field in fields(RequestRow) if field.name not in ("inter_token_seconds", "inter_chunk_seconds")
)
