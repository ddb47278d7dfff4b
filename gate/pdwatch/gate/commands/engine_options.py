"""Settings of the embedded engine from the command line, the same for every command that starts one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from pdwatch.stack import SpecInvalid

KERNELS_VARIABLE = "PDWATCH_KERNELS"

Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--engine", metavar="KEY=VALUE", help="Override an engine setting, e.g. num_pages=256; may be repeated."
    ),
]
Kernels = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"Attention kernels: eager or triton. (default ${KERNELS_VARIABLE}, else eager)"),
]


def engine_settings(assignments: Iterable[str], **options: Any) -> dict[str, Any]:
    """Settings by name from `KEY=VALUE` words and from options; an option of None was not given.

    Raises SpecInvalid for a word of another form.
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not key or not separator:
            raise SpecInvalid(f"--engine {assignment} is not KEY=VALUE: write it like num_pages=256")
        try:
            settings[key] = json.loads(text)
        except ValueError:
            # a bare word is a string: multi_stream_overlap=off
            settings[key] = text
    return settings | {name: value for name, value in options.items() if value is not None}


def with_environment(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, with the kernels that the environment names where they name none."""
    kernels = os.environ.get(KERNELS_VARIABLE)
    return {"kernels": kernels, **settings} if kernels else settings
