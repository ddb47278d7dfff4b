"""The process that reads ended exchanges, writes their transcripts, and answers with their outcomes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .assembly import assemble_chunks
from .exchange import End, Exchange, classify
from .framing import parse_response
from .journal import JournalWriter
from .pipe import serve
from .prepared import Facts
from .transcript import Label, Outcome, Transcript

# what a server sends in these opens doors, and tells nothing about an answer.
_SECRET_HEADERS = frozenset({"authorization", "proxy-authenticate", "set-cookie", "www-authenticate"})


@dataclass(frozen=True, slots=True)
class Ended:
    """An exchange that has ended: its request's pickled Facts, and the user that sent it."""

    facts: bytes
    user: int
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class Recorded:
    """How a request that stands in the journal ended."""

    phase_index: int
    label: Label
    outcome: Outcome
    outcome_detail: str


def transcript_of(ended: Ended) -> Transcript:
    """Understand an exchange."""
    facts: Facts = pickle.loads(ended.facts)
    exchange = ended.exchange
    reads = zip(exchange.read_seconds, exchange.read_data, strict=True)
    response = parse_response(reads, is_closed=exchange.end is End.CLOSED)
    assembled = assemble_chunks(response.chunks, response.headers)
    outcome, detail = classify(exchange, response, assembled)
    return Transcript(
        request_id=facts.request_id,
        arm=facts.phase.arm,
        level=facts.phase.level,
        phase=facts.phase.index,
        label=facts.label,
        user=ended.user,
        number=facts.task.number,
        dialect=facts.dialect,
        target=facts.target,
        task=facts.task,
        sent_body=facts.body.decode(),
        connect_seconds=exchange.connect_seconds,
        sent_seconds=exchange.sent_seconds,
        sent_unix_seconds=exchange.sent_unix_seconds,
        status=response.status,
        response_headers={name: value for name, value in response.headers.items() if name not in _SECRET_HEADERS},
        chunks=response.chunks,
        ended_seconds=exchange.ended_seconds,
        outcome=outcome,
        outcome_detail=detail,
    )


def main(arguments: Sequence[str]) -> int:
    """Record everything that arrives in the journal at the path `arguments[0]`; the exit status."""
    with JournalWriter(Path(arguments[0])) as journal:

        def record(ended: Ended) -> Iterator[Recorded]:
            transcript = transcript_of(ended)
            journal.append(transcript)
            yield Recorded(transcript.phase, transcript.label, transcript.outcome, transcript.outcome_detail)

        return serve(record)
