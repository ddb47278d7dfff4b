"""Seeded tasks: the same seed, number and configuration give the same task on every machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Final, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from . import catalogue, families, words
from .catalogue import Tool
from .families import ASK_BYTES, MOST_TOOLS, TOOL_BYTES, Family
from .task import ExpectedCall, Task

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]

FEWEST_PROMPT_BYTES: Final = 200
MOST_PROMPT_BYTES: Final = 2000

_MOST_FILLER_BYTES: Final = 800


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

    Families: `copy` asks for one call with values to copy, `sequence` for two or three of different tools, `nested` for
    an array of arrays or a flat object among them, `must_not_call` for text although tools are there; the embedded
    model was taught these. `distractors` offers tools that differ in half a name, and `parallel` wants one tool two to
    four times; the embedded model slips in some of them. `deep` wants objects in objects by a schema of their own, and
    `irrelevance` asks for what no tool is meant for; these two are beyond it.
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


def make_task(seed: int, number: int, config: WorkloadConfig, arm: str = "candidate", turn: int = 0) -> Task:
    """Task `number` of a seed. Another arm gets the same task with a nonce of its own.

    A `turn` above 0 is a further question with the tools of turn 0, for a conversation.
    """
    source = Random(f"{seed}/task/{number}")
    family = source.choices(list(config.families), weights=list(config.families.values()))[0]
    band = source.choices(config.prompt_bands, weights=[band.weight for band in config.prompt_bands])[0]
    target_bytes = max(source.randint(band.fewest_bytes, band.most_bytes), families.fewest_bytes(family))
    tools = _tools(source, seed, family, target_bytes, config)
    nonce = words.nonce(seed, arm, number)
    task_id = f"{seed}-{number}-{arm}"
    if turn:
        source = Random(f"{seed}/task/{number}/turn/{turn}")
        family = _further_family(source, tools, config)
        nonce = words.nonce(seed, f"{arm}/turn/{turn}", number)
        task_id += f"-turn{turn}"
        target_bytes = 0
    calls: tuple[ExpectedCall, ...] = ()
    text: str | None = None
    if families.is_text(family):
        text, ask = families.drawn_text(source, family, nonce, config.made_up_share)
    else:
        calls = families.drawn_calls(source, family, tools, nonce, config.made_up_share, config.most_answer_bytes)
        ask = " then ".join([families.ask_for(source, call) for call in calls])
    padding_bytes = target_bytes - catalogue.total_bytes(tools) - len(f"Please {ask}.".encode())
    filler = _filler(source, padding_bytes, config.made_up_share)
    return Task(
        task_id=task_id,
        family=family,
        seed=seed,
        number=number,
        nonce=nonce,
        messages=({"role": "user", "content": f"{filler}Please {ask}."},),
        tools=tuple([tool.openai() for tool in tools]),
        expected_calls=calls,
        expected_text=text,
        planted=families.planted_values(nonce, calls, text),
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


def _tools(source: Random, seed: int, family: Family, target_bytes: int, config: WorkloadConfig) -> tuple[Tool, ...]:
    fewest = families.fewest_tools(family)
    if families.may_share(family) and source.random() < config.shared_catalogue_share:
        index = source.randrange(config.catalogues)
        for step in range(config.catalogues):
            index_in_pool = (index + step) % config.catalogues
            shared = catalogue.pooled(seed, index_in_pool, config.made_up_share)
            room_bytes = target_bytes - catalogue.pooled_bytes(seed, index_in_pool, config.made_up_share)
            fits = ASK_BYTES <= room_bytes <= _MOST_FILLER_BYTES + ASK_BYTES
            suits = len(shared) >= fewest and any(families.suits(tool, family) for tool in shared)
            if fits and suits:
                return shared
    most = min(MOST_TOOLS, max(fewest, (target_bytes - ASK_BYTES) // TOOL_BYTES))
    # long prompts need tools: the model was not trained on more filler than this.
    needed = -((_MOST_FILLER_BYTES + ASK_BYTES - target_bytes) // TOOL_BYTES)
    count = source.randint(min(most, max(fewest, needed)), most)
    return families.drawn_tools(source, family, count, config.made_up_share)


def _further_family(source: Random, tools: Sequence[Tool], config: WorkloadConfig) -> Family:
    """A family that the tools of an earlier turn serve."""
    wanted = source.choices(list(config.families), weights=list(config.families.values()))[0]
    others: tuple[Family, ...] = ("copy", "nested", "deep")
    if families.is_text(wanted) or any(families.suits(tool, wanted) for tool in tools):
        return wanted
    return next(family for family in others if any(families.suits(tool, family) for tool in tools))


def _filler(source: Random, wanted_bytes: int, made_up_share: float) -> str:
    if wanted_bytes <= 0:
        return ""
    chosen = words.words(source, 3, 3, made_up_share)
    while len(chosen) < min(wanted_bytes - 2, _MOST_FILLER_BYTES):
        chosen += " " + words.words(source, 1, 1, made_up_share)
    return chosen + ". "
