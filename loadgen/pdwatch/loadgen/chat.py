"""Streamed chat completions from a locustfile of one's own.

    from locust import task
    from pdwatch.loadgen.chat import ChatUser

    class Asker(ChatUser):
        model = "tiny-toolcaller"

        @task
        def ask(self):
            answer = self.chat([{"role": "user", "content": "What is 2 + 2?"}], max_tokens=64)
            print(answer.outcome, answer.metrics.time_to_first_token_seconds, answer.text)

`locust -f FILE --headless -u 8 -t 30s --host http://127.0.0.1:8000` runs it. Locust's statistics get failures and the
end-to-end time of complete requests, as Locust rounds it; TTFT, TPOT and ITL are printed at the end, exact. Bytes are
stamped as they arrive and understood when the response is over, in the process that stamps: beyond some thousand tokens
per second and process, or for figures that are to be proved, use `pdwatch load`.
"""

from __future__ import annotations

import itertools
import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import locust
import orjson
from locust.env import Environment
from locust.exception import StopUser

from .assembly import Assembled, assemble_body
from .client import STOPPED, StreamClient
from .connection import Connector
from .definitions import METRICS
from .errors import PlanError
from .framing import parse_response
from .meter import Meter
from .metrics import RequestMetrics, measure
from .outcome import classify
from .percentiles import in_order, of_ordered
from .plan import Dialect
from .poller import Poller
from .redactor import Redactor
from .request import post_request
from .sources.work import CHAT_PATH
from .target import Target
from .tls import tls_context
from .transcript import Label, Outcome, Transcript

_PRINTED: Final = (
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "inter_token_seconds",
    "end_to_end_seconds",
)
_PERCENTS: Final = (50, 90, 99)
_CONNECT_SECONDS: Final = 10.0

_numbers = itertools.count()


class ChatFailed(Exception):
    """What Locust counts a request by that did not complete."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request. Its metrics are None where it has none; see `pdwatch.loadgen.METRICS`."""

    transcript: Transcript
    assembled: Assembled
    metrics: RequestMetrics

    @property
    def outcome(self) -> Outcome:
        """How it ended; only COMPLETE has all that was promised."""
        return self.transcript.outcome

    @property
    def text(self) -> str:
        """The content of the answer, as far as it came."""
        return self.assembled.content or ""


class ChatUser(locust.User):
    """A user with a streaming connection of its own to `host`. `model` is the one to ask for.

    `dialect` says how a server shows the first token; see `pdwatch.loadgen.METRICS`. With `promises_usage` false, for a
    server that ignores `stream_options`, answers are complete without usage.
    """

    abstract = True
    model = ""
    bearer_token_environment: str | None = None
    request_timeout_seconds = 300.0
    most_response_bytes = 16 * 2**20
    is_verified = True
    dialect: Dialect = "openai"
    promises_usage = True

    def __init__(self, environment: Environment, *arguments: Any, **keywords: Any) -> None:
        super().__init__(environment, *arguments, **keywords)
        shared = _shared(environment)
        self._target = Target.parse(self.host or environment.host or "")
        self._token = None
        if self.bearer_token_environment is not None:
            self._token = os.environ.get(self.bearer_token_environment)
            if not self._token:
                raise PlanError(f"environment variable {self.bearer_token_environment} holds no token; export it")
        self._redactor = Redactor(self._token)
        context = tls_context(None, self.is_verified) if self._target.is_tls else None
        self._figures = shared.figures
        self._client = StreamClient(
            Connector(shared.poller, self._target, context, None, _CONNECT_SECONDS),
            request_timeout_seconds=self.request_timeout_seconds,
            most_response_bytes=self.most_response_bytes,
            meter=shared.meter,
        )

    def chat(self, messages: Sequence[Mapping[str, Any]], *, name: str = CHAT_PATH, **fields: Any) -> Answer:
        """Ask for one streamed completion; `fields` go into the request's body as they are.

        Failures are told in the answer and to Locust, not raised. Locust's `request` event gets the answer in its
        `context` under that name.
        """
        wanted = {"model": self.model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        body = orjson.dumps(wanted | fields)
        number = next(_numbers)
        request_id = f"{os.getpid()}-{number}"
        message = post_request(self._target, CHAT_PATH, request_id, body, True, self._token)
        exchange = self._client.exchange(message)
        response = self._redactor.response(parse_response(exchange))
        assembled = assemble_body(response.body, response.headers)
        outcome, detail = classify(exchange, response, assembled, is_streamed=True, promises_usage=self.promises_usage)
        transcript = Transcript(
            request_id=request_id,
            arm="locust",
            level=1,
            phase=0,
            label=Label.MEASURED,
            user=0,
            number=number,
            dialect=self.dialect,
            target=self._target.url,
            task=None,
            sent_body=body.decode(),
            connect_seconds=exchange.connect_seconds,
            sent_seconds=exchange.sent_seconds,
            sent_unix_seconds=exchange.sent_unix_seconds,
            status=response.status,
            response_headers=response.headers,
            received=response.body,
            ended_seconds=exchange.ended_seconds,
            outcome=outcome,
            outcome_detail=self._redactor.text(detail),
            promises_usage=self.promises_usage,
        )
        if exchange.detail is STOPPED:
            # what was raised to stop us ended the exchange, and no further.
            raise StopUser
        answer = Answer(transcript, assembled, measure(transcript, assembled))
        self._tell(name, answer)
        return answer

    def on_stop(self) -> None:
        """Disconnect."""
        self._client.close()

    def _tell(self, name: str, answer: Answer) -> None:
        is_complete = answer.outcome is Outcome.COMPLETE
        seconds = answer.metrics.end_to_end_seconds if is_complete else None
        if is_complete:
            self._figures.add(answer.metrics)
        self.environment.events.request.fire(
            request_type="E2E",
            name=name,
            # what failed has no time that could be compared with an answer's.
            response_time=None if seconds is None else seconds * 1000,
            response_length=len(answer.transcript.received.data),
            exception=None if is_complete else ChatFailed(f"{answer.outcome}: {answer.transcript.outcome_detail}"),
            context={"answer": answer},
            start_time=answer.transcript.sent_unix_seconds,
        )


class _Figures:
    """Raw values of the metrics that are printed at the end."""

    def __init__(self) -> None:
        self._values: dict[str, array[float]] = {name: array("d") for name in _PRINTED}

    def add(self, metrics: RequestMetrics) -> None:
        for name, values in self._values.items():
            value = getattr(metrics, name)
            if isinstance(value, array):
                values.extend(value)
            elif value is not None:
                values.append(value)

    def print(self, environment: Environment, **_: Any) -> None:
        titles = {metric.name: metric.title for metric in METRICS}
        for name, values in self._values.items():
            ordered = in_order(values)
            if ordered:
                shown = "  ".join(f"p{percent} {of_ordered(ordered, percent) * 1000:.2f} ms" for percent in _PERCENTS)
                print(f"{titles[name]:32} {shown}  ({len(ordered)} values)", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the users of one environment share."""

    poller: Poller
    meter: Meter
    figures: _Figures


_by_environment: dict[int, _Shared] = {}


def _shared(environment: Environment) -> _Shared:
    shared = _by_environment.get(id(environment))
    if shared is None:
        shared = _by_environment[id(environment)] = _Shared(Poller(), Meter(), _Figures())
        environment.events.quitting.add_listener(shared.figures.print)  # type: ignore[no-untyped-call]  # Locust leaves it untyped
    return shared
