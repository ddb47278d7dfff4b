"""Where a run's requests come from: the `source` of a plan, one class for each `kind`.

Text that is made here is as long as asked in tokens without asking a tokenizer: its words are one token each in the
vocabularies of today's models (see prose.py). Where a token is something else, `bytes_per_token` tells: the embedded
model reads bytes, so it is 1 there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Order = Literal["shuffled", "file"]
BfclSlice = Literal[
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
]

# UTF-8 bytes of `prose.prose` over the tokens it makes, measured with mistral-common's vocabulary of 131,072 entries.
PROSE_BYTES_PER_TOKEN: Final = 4.97
EMBEDDED_CONTEXT_TOKENS: Final = 2048

_MOST_TOKENS: Final = 1_048_576
_EMBEDDED_HINT: Final = (
    f"the embedded model holds {EMBEDDED_CONTEXT_TOKENS} tokens and a token is a byte there: "
    "long contexts are for real servers"
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LongContext(_Frozen):
    """This share of the requests stands behind a policy text of its own, `fewest_tokens` to `most_tokens` long.

    The value that only this request knows then stands in the text, `needle_depth` of the way down (drawn anew for each
    request when None), and the question refers to it.
    """

    share: Share
    fewest_tokens: int = Field(default=4096, ge=64, le=_MOST_TOKENS)
    most_tokens: int = Field(default=32_768, ge=64, le=_MOST_TOKENS)
    needle_depth: Share | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_order("long_context", "tokens", self.fewest_tokens, self.most_tokens)
        return self


class SharedPrefix(_Frozen):
    """This share of the requests has one of `groups` system prompts of `tokens` tokens each.

    Where a model's chat template puts the tools before the system prompt, only requests of the same tools share it as a
    prefix.
    """

    share: Share = 1.0
    groups: int = Field(default=8, ge=1, le=100_000)
    tokens: int = Field(default=1024, ge=16, le=_MOST_TOKENS)


class Sessions(_Frozen):
    """This share of the requests opens a conversation of `fewest_turns` to `most_turns` turns.

    With `refers_back`, each question after the first needs a value out of the result before it, which is what an agent
    does; without, each is whole in itself, which is all that the embedded model was taught.
    """

    share: Share = 1.0
    fewest_turns: int = Field(default=2, ge=1, le=64)
    most_turns: int = Field(default=4, ge=1, le=64)
    refers_back: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_order("sessions", "turns", self.fewest_turns, self.most_turns)
        return self


class _Source(_Frozen):
    """What all sources take. `streamed_share` of the requests ask for a stream; None leaves `max_tokens` to the source
    (see each)."""

    max_tokens: int | None = Field(default=None, ge=1)
    streamed_share: Share = 1.0


class _Made(_Source):
    """Sources that make their text. `over_long_share` of the requests exceed the model's `context_tokens` and must be
    refused with an HTTP error while the others go on; they carry `expects` = `http_error` in their provenance.
    """

    context_tokens: int | None = Field(default=None, ge=64)
    bytes_per_token: float = Field(default=PROSE_BYTES_PER_TOKEN, ge=1, le=16)
    over_long_share: Share = 0.0
    shared_prefix: SharedPrefix | None = None

    @model_validator(mode="after")
    def _context_is_known(self) -> Self:
        if self.over_long_share and self.context_tokens is None:
            raise ValueError(
                f"over_long_share is {self.over_long_share}: give context_tokens, the most tokens that the model holds"
            )
        return self

    def _check_room(self, name: str, tokens: int) -> None:
        if self.context_tokens is not None and tokens >= self.context_tokens:
            raise ValueError(
                f"{name} of {tokens} tokens leaves no room in context_tokens = {self.context_tokens}: shorten it, or "
                f"give the model's true context ({_EMBEDDED_HINT})"
            )


class ToolCallsSource(_Made):
    """Seeded tool-call tasks of `Plan.workload` with known answers; the default source.

    `max_tokens` None takes the workload's `max_completion_tokens`. 1 − `tools_share` of the requests offer no tool and
    ask for plain text. `has_rules` adds a system message that tells a general model what is wanted; the embedded model
    needs none.
    """

    kind: Literal["tool_calls"] = "tool_calls"
    tools_share: Share = 1.0
    has_rules: bool = False
    long_context: LongContext | None = None
    sessions: Sessions | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        prefix_tokens = 0 if self.shared_prefix is None else self.shared_prefix.tokens
        if self.shared_prefix is not None:
            self._check_room("shared_prefix", prefix_tokens)
        if self.long_context is not None:
            self._check_room("long_context", self.long_context.most_tokens + prefix_tokens)
        return self


class TextSource(_Made):
    """Synthetic prose of `fewest_words` to `most_words` words, and an answer of up to `max_tokens` (None: 128).

    `min_tokens` and `ignore_eos` are extensions that SGLang and vLLM know and the OpenAI API refuses: they need the
    plan's dialect `sglang`. `endpoint` `completions` sends the text to /v1/completions.
    """

    kind: Literal["text"] = "text"
    endpoint: Literal["chat", "completions"] = "chat"
    fewest_words: int = Field(default=200, ge=8, le=_MOST_TOKENS)
    most_words: int = Field(default=200, ge=8, le=_MOST_TOKENS)
    min_tokens: int | None = Field(default=None, ge=1)
    ignore_eos: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_order("text", "words", self.fewest_words, self.most_words)
        self._check_room("most_words", self.most_words + (self.shared_prefix.tokens if self.shared_prefix else 0))
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens = {self.max_tokens}")
        return self


class _Filed(_Source):
    """Sources that read a file. `order` `shuffled` goes through all rows in a seeded order, whatever a request's
    number; `file` gives the n-th request of a phase row n, as a replay needs it.
    """

    order: Order = "shuffled"


class OpenaiRequestsSource(_Filed):
    """A JSONL file of chat request bodies, or of OpenAI batch lines that hold one as `body`.

    `stream` `share` asks for streams by `streamed_share`; `keep` sends what each line says. The model is the plan's
    unless `keeps_model`. `max_tokens` None keeps each line's own. `plants_nonce` ends each last question with a code of
    its own, by which an answer that leaks into another request's is found.
    """

    kind: Literal["openai_requests"] = "openai_requests"
    path: Path
    stream: Literal["share", "keep"] = "share"
    keeps_model: bool = False
    plants_nonce: bool = False


class ShareGptSource(_Filed):
    """Conversations in ShareGPT's form, as one JSON array or as JSONL: `turns` `first` asks the first question,
    `all` goes on with the person's next ones (at most `most_turns`), each after the model's own answer.

    `max_tokens` None limits no answer, or with `has_recorded_lengths` each to the recorded answer's length; with the
    plan's dialect `sglang` the model must then go on to that length (`ignore_eos`).
    """

    kind: Literal["sharegpt"] = "sharegpt"
    path: Path
    turns: Literal["first", "all"] = "first"
    most_turns: int = Field(default=16, ge=1, le=1000)
    has_recorded_lengths: bool = False
    bytes_per_token: float = Field(default=4.0, ge=1, le=16)


class BfclSource(_Filed):
    """Slices of the Berkeley Function Calling Leaderboard, version 4, out of the installed package `bfcl-eval` or of
    `folder`, a copy of its data folder. `max_tokens` None limits no answer.
    """

    kind: Literal["bfcl"] = "bfcl"
    folder: Path | None = None
    slices: tuple[BfclSlice, ...] = Field(
        default=("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"), min_length=1
    )


class MooncakeSource(_Source):
    """Prompts after a trace in Mooncake's form: each line's `input_length` in tokens, made of one block of
    `block_tokens` words for each of its `hash_ids`, the same id giving the same block, so that prefixes repeat as the
    trace says; a line without ids shares nothing. `max_tokens` None takes `output_length`, and `ignore_eos` (dialect
    `sglang`) makes the answer that long.

    The n-th request of a phase is row n, in the order of the file. A prompt's blocks stand after the chat template's
    opening tokens, so a block's bounds in the server are off by these.
    """

    kind: Literal["mooncake"] = "mooncake"
    path: Path
    block_tokens: int = Field(default=512, ge=1, le=65_536)
    most_input_tokens: int | None = Field(default=None, ge=1)
    ignore_eos: bool = False


SourceConfig = Annotated[
    ToolCallsSource | TextSource | OpenaiRequestsSource | ShareGptSource | BfclSource | MooncakeSource,
    Field(discriminator="kind"),
]


def _check_order(name: str, unit: str, fewest: int, most: int) -> None:
    if most < fewest:
        raise ValueError(f"{name}: most_{unit} is {most}, less than fewest_{unit} = {fewest}")
