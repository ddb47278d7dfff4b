"""One request inside a worker: what it asked, what has come out of it, and how long that took."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ..request import FinishReason, Output

if TYPE_CHECKING:
    from ..metrics import WorkerMetrics
    from ..request import Request


class RequestFailed(Exception):
    """A request ends without an answer; `status` and `kind` are what SGLang's error body carries."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


class OutputStream:
    """Outputs of one request, from the engine's loop to the task that answers it.

    The loop delivers without waiting; the answering task takes whatever has gathered. Clock values are of
    time.perf_counter.
    """

    def __init__(self, request: Request, metrics: WorkerMetrics) -> None:
        self.request = request
        self.rid = request.rid
        self.created = time.perf_counter()
        self.created_unix = time.time()
        self.submitted: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.generated_tokens = 0
        self.cached_tokens = 0
        self.retractions = 0
        self.largest_batch = 0
        self.aborted = False
        self._metrics = metrics
        self._last_token_at = self.created
        self._outputs: list[Output] = []
        self._failure: RequestFailed | ClientGone | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def ended(self) -> bool:
        """True once the last output was delivered or the request failed."""
        return self.ended_at is not None

    async def next(self) -> list[Output]:
        """The outputs since the last call, at least one.

        Raises RequestFailed when the request cannot be answered, ClientGone when nobody waits for the answer.
        """
        while not self._outputs:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        outputs, self._outputs = self._outputs, []
        return outputs

    def deliver(self, output: Output, now: float) -> None:
        """Take one output of the engine at time `now`."""
        if self.ended:
            return
        self._measure(output, now)
        self._outputs.append(output)
        if output.finish is not None:
            self._end(now, aborted=output.finish.type == "abort")
        self._wake()

    def fail(self, failure: RequestFailed | ClientGone) -> None:
        """End the request without (more) output; outputs already delivered are still taken first."""
        if self.ended:
            return
        self._failure = failure
        self._end(time.perf_counter(), aborted=True)
        self._wake()

    def abort(self, message: str) -> None:
        """End the request with finish reason abort, keeping what it has generated."""
        output = Output(
            rid=self.rid,
            new_token_ids=[],
            logprobs=None,
            finish=FinishReason("abort", message=message),
            prompt_logprobs=None,
            cached_tokens=self.cached_tokens,
            running_batch=0,
            num_retractions=self.retractions,
        )
        self.deliver(output, time.perf_counter())

    def _measure(self, output: Output, now: float) -> None:
        self.cached_tokens = output.cached_tokens
        self.largest_batch = max(self.largest_batch, output.running_batch)
        if output.num_retractions > self.retractions:
            times = output.num_retractions - self.retractions
            self._metrics.retracted(times, self.prompt_tokens, self.generated_tokens)
            self.retractions = output.num_retractions
        count = len(output.new_token_ids)
        if count:
            if self.first_token_at is None:
                self.first_token_at = now
                self._metrics.first_token(now - self.created, self.request.stream)
            else:
                self._metrics.further_tokens(now - self._last_token_at, count)
            self._last_token_at = now
            self.generated_tokens += count

    def _end(self, now: float, *, aborted: bool) -> None:
        self.ended_at = now
        self.aborted = self.aborted or aborted
        self._metrics.finished(
            streaming=self.request.stream,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            e2e_seconds=now - self.created,
            decode_seconds=None if self.first_token_at is None else now - self.first_token_at,
            aborted=self.aborted,
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
