"""State of one request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdwatch.stack.embedded import tokens as vocabulary
from pdwatch.stack.embedded.pool import SavedPages
from pdwatch.stack.embedded.prefix import CachedPage
from pdwatch.stack.embedded.request import FinishReason, Output, Request, TokenLogprob


@dataclass(slots=True, eq=False)
class SequenceState:
    """A request with its tokens and its memory.

    tokens   prompt and generated tokens; the newest generated one has no KV yet
    pages    pages in order, its own and those of the prefix cache
    shared   the prefix cache's pages among them, in use by this request: a prefix of `pages`
    computed prompt tokens whose KV is in the pool
    started  order in which requests entered the decode batch for the first time
    """

    request: Request
    tokens: list[int]
    pages: list[int] = field(default_factory=list)
    shared: list[CachedPage] = field(default_factory=list)
    saved: SavedPages | None = None
    computed: int = 0
    cached_tokens: int = 0
    started: int = 0
    retractions: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @classmethod
    def of(cls, request: Request) -> SequenceState:
        """The state of a request that has just arrived."""
        return cls(request, list(request.prompt_ids))

    @property
    def rid(self) -> str:
        """The request's id."""
        return self.request.rid

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def generates(self) -> bool:
        """False for a request that only scores its prompt."""
        return self.request.sampling.max_new_tokens > 0

    @property
    def scored_from(self) -> int | None:
        """First prompt position that must be computed for its log-probabilities."""
        start = self.request.logprob_start
        return None if start is None else min(start, self.prompt_length - 1)

    def finish(self) -> FinishReason | None:
        """Why generation ends after the newest token, if it does."""
        sampling = self.request.sampling
        newest = self.tokens[-1]
        if newest in sampling.stop_token_ids or (newest == vocabulary.EOS and not sampling.ignore_eos):
            return FinishReason("stop", matched=newest)
        if len(self.tokens) - self.prompt_length >= sampling.max_new_tokens:
            return FinishReason("length")
        return None

    def output(
        self,
        new_token_ids: list[int],
        logprobs: list[TokenLogprob] | None,
        finish: FinishReason | None,
        running_batch: int,
    ) -> Output:
        """An Output of this request; its prompt's log-probabilities leave with the first one."""
        prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs, None
        return Output(
            rid=self.rid,
            new_token_ids=new_token_ids,
            logprobs=logprobs,
            finish=finish,
            prompt_logprobs=prompt_logprobs,
            cached_tokens=self.cached_tokens,
            running_batch=running_batch,
            num_retractions=self.retractions,
        )
