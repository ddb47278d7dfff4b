"""What enters the engine and what leaves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pdwatch.stack.embedded.pool import KvSource

_LOWEST_TEMPERATURE: Final = 1e-6


@dataclass(slots=True)
class SamplingParameters:
    """How the next token is chosen and when generation ends."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        """True when the best token is taken; as in SGLang also below a temperature of 1e-6, where logits overflow."""
        return self.temperature < _LOWEST_TEMPERATURE


@dataclass(slots=True)
class Request:
    """One prompt to continue (or, with `logprob_start` and `max_new_tokens=0`, to score).

    `logprob_start` is the first prompt position whose log-probability is reported; as in SGLang that first entry
    is None because nothing before it was scored. `room` marks a request of a prefill/decode pair.
    """

    rid: str
    prompt_ids: list[int]
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    return_logprob: bool = False
    top_logprobs: int = 0
    token_ids_logprob: tuple[int, ...] = ()
    logprob_start: int | None = None
    room: int | None = None
    stream: bool = True


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of one token, of the best tokens at its position and of the tokens asked for."""

    token: int
    logprob: float
    top: tuple[tuple[float, int], ...] = ()
    chosen: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a request ended; `matched` is the token that stopped it."""

    type: Literal["stop", "length", "abort"]
    matched: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one request after one step. `logprobs` runs parallel to `new_token_ids` when asked for."""

    rid: str
    new_token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish: FinishReason | None
    prompt_logprobs: list[TokenLogprob | None] | None
    cached_tokens: int
    running_batch: int
    num_retractions: int


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """A prefill worker's prompt is computed: the first token and the pages to send to the decode worker.

    `tokens` is the number of prompt tokens whose KV the pages of `kv` hold. Call `Engine.transfer_done(rid)` when
    the pages were sent (or will never be).
    """

    rid: str
    room: int
    first_token: int
    first_logprob: TokenLogprob | None
    prompt_logprobs: list[TokenLogprob | None] | None
    tokens: int
    cached_tokens: int
    kv: KvSource
