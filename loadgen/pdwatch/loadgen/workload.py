"""Seeded tasks: the same seed, number and configuration give the same task on every machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from . import catalogue, words
from .catalogue import Tool
from .task import ExpectedCall, Task

Family = Literal["copy", "sequence", "nested", "must_not_call"]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]

FEWEST_PROMPT_BYTES: Final = 200
MOST_PROMPT_BYTES: Final = 2000

# a request of that many tools in a row needs room for them, or it could only repeat one of them.
_SEQUENCE_PROMPT_BYTES: Final = 560
_TOOL_BYTES: Final = 175
_ASK_BYTES: Final = 150
_MOST_TOOLS: Final = 8
_MOST_FILLER_BYTES: Final = 800
_ATTEMPTS: Final = 30


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PromptBand(_Frozen):
    """Prompts of `fewest_bytes` to `most_bytes`, evenly spread, with this weight among the bands."""

    fewest_bytes: int = Field(ge=FEWEST_PROMPT_BYTES, le=MOST_PROMPT_BYTES)
    most_bytes: int = Field(ge=FEWEST_PROMPT_BYTES, le=MOST_PROMPT_BYTES)
    weight: Weight = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.most_bytes < self.fewest_bytes:
            raise ValueError(f"a prompt band ends at {self.most_bytes} bytes before it begins at {self.fewest_bytes}")
        return self


class WorkloadConfig(_Frozen):
    """What the tasks of a run are like.

    Prompt sizes are those of the embedded model's prompt (a token is a byte there) and always past its window and
    top-k together, so that its sparse attention has something to leave out. `shared_catalogue_share` of the requests
    offer one of `catalogues` fixed tool lists, as an agent does, so that a prefix cache finds them.
    """

    families: Mapping[Family, Weight] = {"copy": 0.5, "sequence": 0.2, "nested": 0.15, "must_not_call": 0.15}
    prompt_bands: tuple[PromptBand, ...] = (
        PromptBand(fewest_bytes=200, most_bytes=450, weight=0.7),
        PromptBand(fewest_bytes=450, most_bytes=900, weight=0.22),
        PromptBand(fewest_bytes=900, most_bytes=2000, weight=0.08),
    )
    catalogues: int = Field(default=6, ge=1, le=1000)
    shared_catalogue_share: Share = 0.5
    made_up_share: Share = 0.5
    most_answer_bytes: int = Field(default=300, ge=100)
    max_completion_tokens: int = Field(default=512, ge=1)

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if not sum(self.families.values()):
            raise ValueError(f"families: give at least one of {', '.join(get_args(Family))} a weight above 0")
        if not sum(band.weight for band in self.prompt_bands):
            raise ValueError("prompt_bands: give at least one band a weight above 0")
        return self


def make_task(seed: int, number: int, config: WorkloadConfig, arm: str = "candidate") -> Task:
    """Task `number` of a seed. Another arm gets the same task with a nonce of its own."""
    source = Random(f"{seed}/task/{number}")
    family = source.choices(list(config.families), weights=list(config.families.values()))[0]
    band = source.choices(config.prompt_bands, weights=[band.weight for band in config.prompt_bands])[0]
    target_bytes = source.randint(band.fewest_bytes, band.most_bytes)
    if family == "sequence":
        target_bytes = max(target_bytes, _SEQUENCE_PROMPT_BYTES)
    tools = _tools(source, seed, family, target_bytes, config)
    nonce = words.nonce(seed, arm, number)
    calls: tuple[ExpectedCall, ...] = ()
    text: str | None = None
    if family == "must_not_call":
        text = _text(source, nonce, config)
        ask = f"say {text}"
    else:
        calls = _calls(source, family, tools, nonce, config)
        ask = " then ".join(_ask(source, call) for call in calls)
    padding_bytes = target_bytes - catalogue.total_bytes(tools) - len(f"Please {ask}.".encode())
    filler = _filler(source, padding_bytes, config.made_up_share)
    return Task(
        task_id=f"{seed}-{number}-{arm}",
        family=family,
        seed=seed,
        number=number,
        nonce=nonce,
        messages=({"role": "user", "content": f"{filler}Please {ask}."},),
        tools=tuple(tool.openai() for tool in tools),
        expected_calls=calls,
        expected_text=text,
        planted=_planted(nonce, calls, text),
    )


def prompt_bytes(task: Task) -> int:
    """Size of the task in the embedded model's prompt form, without its few special tokens."""
    content = sum(len(message["content"].encode()) for message in task.messages)
    shapes = (
        Tool(
            tool["function"]["name"],
            {field: schema["type"] for field, schema in tool["function"]["parameters"]["properties"].items()},
        )
        for tool in task.tools
    )
    return content + catalogue.total_bytes(tuple(shapes))


def answer_bytes(calls: Sequence[ExpectedCall], text: str | None) -> int:
    """Size of an answer in the embedded model's tokens."""
    if text is not None:
        return len(text.encode()) + 1
    fields = sum(
        2 + len(field.encode()) + len(_json(value).encode())
        for call in calls
        for field, value in call.arguments.items()
    )
    return 2 + fields + sum(2 + len(call.name.encode()) for call in calls)


def _tools(source: Random, seed: int, family: Family, target_bytes: int, config: WorkloadConfig) -> tuple[Tool, ...]:
    fewest = 2 if family == "sequence" else 1
    if source.random() < config.shared_catalogue_share:
        index = source.randrange(config.catalogues)
        for step in range(config.catalogues):
            shared = catalogue.pooled(seed, (index + step) % config.catalogues, config.made_up_share)
            fits = catalogue.total_bytes(shared) + _ASK_BYTES <= target_bytes
            fills = target_bytes - catalogue.total_bytes(shared) <= _MOST_FILLER_BYTES + _ASK_BYTES
            suits = len(shared) >= fewest and any(_suits(tool, family) for tool in shared)
            if fits and fills and suits:
                return shared
    most = min(_MOST_TOOLS, max(fewest, (target_bytes - _ASK_BYTES) // _TOOL_BYTES))
    # long prompts need tools: the model was not trained on more filler than this.
    needed = -((_MOST_FILLER_BYTES + _ASK_BYTES - target_bytes) // _TOOL_BYTES)
    count = source.randint(min(most, max(fewest, needed)), most)
    return catalogue.drawn(source, count, config.made_up_share, nested=family == "nested")


def _suits(tool: Tool, family: Family) -> bool:
    return tool.is_flat != (family == "nested")


def _calls(
    source: Random, family: Family, tools: Sequence[Tool], nonce: str, config: WorkloadConfig
) -> tuple[ExpectedCall, ...]:
    suited = [tool for tool in tools if _suits(tool, family)]
    wanted = source.choice((2, 2, 3)) if family == "sequence" else 1
    chosen = source.sample(suited, wanted) if wanted <= len(suited) else source.choices(suited, k=wanted)
    for attempt in range(_ATTEMPTS):
        # a third call that does not fit, however often its values are drawn, is left out.
        kept = chosen if attempt < _ATTEMPTS // 2 else chosen[:2]
        calls = tuple(
            ExpectedCall(
                tool.name,
                {field: words.value(source, kind, config.made_up_share) for field, kind in tool.kinds.items()},
            )
            for tool in kept
        )
        first = dict(calls[0].arguments)
        first[source.choice([field for field, kind in kept[0].kinds.items() if kind == "string"])] = nonce
        calls = (ExpectedCall(calls[0].name, first), *calls[1:])
        if answer_bytes(calls, None) <= config.most_answer_bytes:
            break
    return calls


def _ask(source: Random, call: ExpectedCall) -> str:
    items = list(call.arguments.items())
    source.shuffle(items)
    return f"call {call.name} with " + ", ".join(f"{field} = {_json(value)}" for field, value in items)


def _text(source: Random, nonce: str, config: WorkloadConfig) -> str:
    parts = [nonce, words.words(source, 1, 2, config.made_up_share)]
    if source.random() < 0.4:
        parts.append(source.choice(words.EXOTIC))
    source.shuffle(parts)
    return " ".join(parts)


def _filler(source: Random, wanted_bytes: int, made_up_share: float) -> str:
    if wanted_bytes <= 0:
        return ""
    chosen = words.words(source, 3, 3, made_up_share)
    while len(chosen) < min(wanted_bytes - 2, _MOST_FILLER_BYTES):
        chosen += " " + words.words(source, 1, 1, made_up_share)
    return chosen + ". "


def _planted(nonce: str, calls: Sequence[ExpectedCall], text: str | None) -> tuple[str, ...]:
    rare = [nonce]
    values: list[Any] = [value for call in calls for value in call.arguments.values()]
    if text is not None:
        values += text.split(" ")
    for value in values:
        is_code = isinstance(value, str) and len(value) >= 6 and set(value) <= set(words.CODE_ALPHABET)
        is_exotic = isinstance(value, str) and not value.isascii()
        is_large = type(value) is int and value >= 2**53
        if value != nonce and (is_code or is_exotic or is_large):
            rare.append(str(value))
    return tuple(rare)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
