"""Which group a kernel belongs to, by ordered rules in a data file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors import RulesInvalid

OTHER: Final = "other"
GAPS: Final = "gaps"
ActivityKind = Literal["kernel", "memcpy", "memset"]

_NAME = r"^[a-z][a-z0-9_]{0,39}$"
# templates of CUTLASS fill kilobytes with what says nothing more
_LONGEST_NAME: Final = 2000


class GroupText(BaseModel):
    """A group as the documentation and the metrics show it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=_NAME)]
    help: Annotated[str, Field(min_length=1)]


class Rule(BaseModel):
    """Activities whose kind is one of `kinds` and whose name one of `match` is found in; without `match`, all names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group: Annotated[str, Field(pattern=_NAME)]
    kinds: Annotated[tuple[ActivityKind, ...], Field(min_length=1)] = ("kernel",)
    match: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _patterns_are_patterns(self) -> Rule:
        for pattern in self.match:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"`{pattern}` is no regular expression: {error}") from error
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1]
    groups: Annotated[tuple[GroupText, ...], Field(min_length=1)]
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _rules_and_groups_agree(self) -> _File:
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError("a group is described twice")
        if reserved := {OTHER, GAPS} & set(names):
            raise ValueError(f"`{sorted(reserved)[0]}` is not for rules: it is what no rule takes")
        if unknown := {rule.group for rule in self.rules} - set(names):
            raise ValueError(f"the group `{sorted(unknown)[0]}` is not described under groups")
        if unused := set(names) - {rule.group for rule in self.rules}:
            raise ValueError(f"the group `{sorted(unused)[0]}` has no rule")
        return self


class KernelRules:
    """The first rule that fits decides; what none fits is `other`."""

    def __init__(self, groups: Sequence[GroupText], rules: Sequence[Rule]) -> None:
        self.groups = tuple(groups)
        self._rules = [
            (
                rule.group,
                frozenset(rule.kinds),
                re.compile("|".join(f"(?:{part})" for part in rule.match), re.IGNORECASE),
            )
            for rule in rules
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """All groups an activity can have, `other` last."""
        return (*(group.name for group in self.groups), OTHER)

    def group(self, name: str, kind: ActivityKind) -> str:
        """The group of an activity."""
        shown = name[:_LONGEST_NAME]
        for group, kinds, pattern in self._rules:
            # the empty pattern of a rule without `match` is found everywhere
            if kind in kinds and pattern.search(shown):
                return group
        return OTHER


def read_rules(path: Path | None = None) -> KernelRules:
    """Rules from a TOML file; without a path those that travel with the package. Raises RulesInvalid."""
    shown = path or "rules.toml"
    try:
        if path is None:
            text = (resources.files(__package__) / "rules.toml").read_text(encoding="utf-8")
        else:
            text = path.read_text(encoding="utf-8")
        file = _File.model_validate(tomllib.loads(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RulesInvalid(f"the rules {shown} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise RulesInvalid(f"the rules {shown} are wrong at {place}: {first['msg']}") from error
    return KernelRules(file.groups, file.rules)
