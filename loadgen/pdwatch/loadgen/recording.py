"""From an exchange to its transcript and its row."""

from __future__ import annotations

from .assembly import Assembled, assemble_body
from .exchange import Exchange
from .framing import parse_response
from .outcome import classify
from .prepared import Kept, Preparer
from .transcript import Label, Transcript


def understand(
    exchange: Exchange, request_id: str, label: Label, user: int, kept: Kept, preparer: Preparer, dialect: str
) -> tuple[Transcript, Assembled]:
    """The transcript of an exchange, and the answer put together."""
    work, phase = kept.work, preparer.phase
    redactor = preparer.redactor
    response = redactor.response(parse_response(exchange))
    assembled = assemble_body(response.body, response.headers, is_streamed=work.is_streamed)
    promises_usage = work.promises_usage and preparer.promises_usage
    outcome, detail = classify(
        exchange, response, assembled, is_streamed=work.is_streamed, promises_usage=promises_usage
    )
    transcript = Transcript(
        request_id=request_id,
        arm=phase.arm,
        level=phase.level,
        phase=phase.index,
        label=label,
        user=user,
        number=kept.number,
        dialect=dialect,
        target=preparer.target.url,
        task=work.task,
        sent_body=work.body.decode(),
        connect_seconds=exchange.connect_seconds,
        sent_seconds=exchange.sent_seconds,
        sent_unix_seconds=exchange.sent_unix_seconds,
        status=response.status,
        response_headers=response.headers,
        received=response.body,
        ended_seconds=exchange.ended_seconds,
        outcome=outcome,
        outcome_detail=redactor.text(detail),
        scheduled_seconds=exchange.scheduled_seconds,
        path=work.path,
        is_streamed=work.is_streamed,
        promises_usage=promises_usage,
        provenance=work.provenance,
        session=work.session,
    )
    return transcript, assembled
