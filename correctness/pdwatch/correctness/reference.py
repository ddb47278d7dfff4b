"""The eager reference: scores a candidate's own tokens by teacher forcing or, where tokens are not known, answers the
same request itself; live or from what was stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import orjson

from pdwatch.correctness.errors import NotStored, ReferenceFailure, ReferenceRefused, ReferenceUnavailable
from pdwatch.correctness.excerpt import excerpt
from pdwatch.correctness.facts import EngineFacts, read_facts, read_limited, refuse_mismatch
from pdwatch.correctness.own_answer import OwnAnswer, answer_key, question, read_own_answer
from pdwatch.correctness.score import TOP_TOKENS, AnswerScore, read_scores
from pdwatch.correctness.score_journal import ScoreJournal, score_key

_Said = TypeVar("_Said")

CONNECTIONS = 3
TRANSPORT_RETRIES = 2
TIMEOUT_SECONDS = 60.0
RETRY_PAUSE_SECONDS = 0.2
# an entry is [logprob, id, text]: some 40 bytes, with room for text and for the rest of meta_info.
_BYTES_PER_ENTRY = 400
_BYTES_BESIDE = 1_000_000
# a chat completion does not say how long it will be; 20 top tokens of 4000 positions fit several times.
_CHAT_BYTES = 32 * 2**20


@dataclass(slots=True)
class ReferenceStatistics:
    """Counts since the reference was opened."""

    scored: int = 0
    answered: int = 0
    reused: int = 0
    refused: int = 0
    transport_retries: int = 0


class Reference:
    """A live reference behind SGLang's /generate and /v1/chat/completions.

    `score` and `own_answer` may be called from `connections` threads at once, which keeps the server busy. What it says
    goes to the journal and is taken from there when the same question comes again, as in paired arms. Only transport
    errors are retried, and counted; an answer is never asked for twice. After the server has failed once for good,
    every further call fails at once.
    """

    def __init__(
        self,
        url: str,
        journal: ScoreJournal,
        *,
        candidate: EngineFacts | None = None,
        connections: int = CONNECTIONS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        transport_retries: int = TRANSPORT_RETRIES,
        bearer_token: str | None = None,
    ) -> None:
        """Reads the server's facts. Raises ReferenceUnavailable when it does not answer, ReferenceMismatch when it
        serves something else than `candidate` or than the journal was scored with."""
        self.url = url.rstrip("/")
        self.connections = connections
        self.statistics = ReferenceStatistics()
        self._journal = journal
        self._transport_retries = transport_retries
        self._lock = Lock()
        self._lost: str | None = None
        self._tells_logprobs = True
        self._client = httpx.Client(
            headers={} if bearer_token is None else {"Authorization": f"Bearer {bearer_token}"},
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            timeout=timeout_seconds,
            # a proxy from the environment would stand between us and a server on loopback.
            trust_env=False,
        )
        try:
            self.facts = read_facts(self._client, self.url)
            if candidate is not None:
                refuse_mismatch(self.facts, candidate.identity, f"the candidate {candidate.url}")
            if journal.facts is not None:
                refuse_mismatch(self.facts, journal.facts.get("identity", {}), str(journal.path))
        except BaseException:
            self._client.close()
            raise
        journal.write_facts(self.facts.to_json())

    def score(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> AnswerScore:
        """Score an answer. Raises ReferenceUnavailable, or ReferenceRefused when only this request was refused."""
        key = score_key(prompt_ids, answer_ids)
        stored = self._journal.get(key)
        if stored is not None:
            self._count("reused")
            return stored
        score = self._while_it_is_there(lambda: read_scores(self._generate(prompt_ids, answer_ids), answer_ids))
        self._journal.put(key, len(prompt_ids), score)
        self._count("scored")
        return score

    def own_answer(self, sent_body: str) -> OwnAnswer:
        """The reference's own answer to a candidate's chat completion. Raises as `score` does."""
        key = answer_key(sent_body)
        stored = self._journal.get_answer(key)
        if stored is not None:
            self._count("reused")
            return stored
        answer = self._while_it_is_there(lambda: read_own_answer(self._complete(sent_body)))
        self._journal.put_answer(key, answer)
        self._count("answered")
        return answer

    def close(self) -> None:
        """Close the connections; the journal stays open, it is the caller's."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _while_it_is_there(self, ask: Callable[[], _Said]) -> _Said:
        """What the reference says; once it was lost it is not asked again."""
        if self._lost is not None:
            raise ReferenceUnavailable(self._lost)
        try:
            return ask()
        except ReferenceUnavailable as error:
            self._lost = str(error)
            raise

    def _generate(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Any:
        body = orjson.dumps(
            {
                "input_ids": [*prompt_ids, *answer_ids],
                "sampling_params": {"max_new_tokens": 0, "temperature": 0},
                "return_logprob": True,
                "logprob_start_len": len(prompt_ids) - 1,
                "top_logprobs_num": TOP_TOKENS,
            }
        )
        limit = _BYTES_BESIDE + (len(answer_ids) + 1) * (TOP_TOKENS + 1) * _BYTES_PER_ENTRY
        status, answer = self._post("/generate", body, limit)
        if status != 200:
            raise self._refusal("score", status, answer)
        try:
            return orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise ReferenceUnavailable(f"the reference {self.url} answers no JSON: {_message(answer)}") from error

    def _complete(self, sent_body: str) -> bytes:
        """The body of the chat completion; asked without log-probabilities where the server refuses to tell them."""
        status, answer = 400, b""
        if self._tells_logprobs:
            status, answer = self._post("/v1/chat/completions", question(sent_body, with_logprobs=True), _CHAT_BYTES)
        if status in (400, 422):
            status, answer = self._post("/v1/chat/completions", question(sent_body, with_logprobs=False), _CHAT_BYTES)
            # a request that is refused either way says nothing about log-probabilities.
            self._tells_logprobs = self._tells_logprobs and status != 200
        if status != 200:
            raise self._refusal("answer", status, answer)
        return answer

    def _refusal(self, what: str, status: int, answer: bytes) -> ReferenceFailure:
        if 400 <= status < 500:
            self._count("refused")
            return ReferenceRefused(f"the reference refused to {what} (HTTP {status}): {_message(answer)}")
        return ReferenceUnavailable(
            f"the reference {self.url} answers HTTP {status}: {_message(answer)}; look into its log"
        )

    def _post(self, path: str, body: bytes, limit: int) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        attempt = 0
        while True:
            try:
                with self._client.stream("POST", self.url + path, content=body, headers=headers) as response:
                    return response.status_code, read_limited(response, limit)
            except httpx.TransportError as error:
                if attempt == self._transport_retries:
                    raise ReferenceUnavailable(
                        f"the reference {self.url} cannot be reached after {attempt + 1} attempts"
                        f" ({type(error).__name__}: {error}): start it or check the address"
                    ) from error
                attempt += 1
                self._count("transport_retries")
                time.sleep(RETRY_PAUSE_SECONDS * attempt)

    def _count(self, name: str) -> None:
        with self._lock:
            setattr(self.statistics, name, getattr(self.statistics, name) + 1)


class StoredReference:
    """Scores and answers from a journal alone, to redo a judgement after the reference is gone."""

    def __init__(self, journal: ScoreJournal) -> None:
        self._journal = journal

    @property
    def facts(self) -> Mapping[str, Any] | None:
        """The facts of the reference that scored, None in an empty journal."""
        return self._journal.facts

    def score(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> AnswerScore:
        """The stored score. Raises NotStored."""
        stored = self._journal.get(score_key(prompt_ids, answer_ids))
        if stored is None:
            raise NotStored(f"{self._journal.path} holds no score for this answer: judge again with a live reference")
        return stored

    def own_answer(self, sent_body: str) -> OwnAnswer:
        """The stored answer. Raises NotStored."""
        stored = self._journal.get_answer(answer_key(sent_body))
        if stored is None:
            raise NotStored(f"{self._journal.path} holds no answer to this request: judge again with a live reference")
        return stored


def _message(body: bytes) -> str:
    return excerpt(body[:1_000].decode("utf-8", errors="replace"))
