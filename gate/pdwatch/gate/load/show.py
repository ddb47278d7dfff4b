"""The result of a load run on stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
from rich.console import Console
from rich.text import Text

from pdwatch.gate.commands.output import write_out
from pdwatch.gate.load.results import LoadResult
from pdwatch.gate.load.run import RESULT_NAME
from pdwatch.gate.load.table import printable_notes, results_table
from pdwatch.gate.printable import printable

_PIPE_WIDTH = 200


def print_result(folder: Path, result: LoadResult, exit_code: int, as_json: bool) -> None:
    """Print the table and its notes, or the result as one JSON object with the run folder and the exit code."""
    if as_json:
        document = {
            **result.model_dump(mode="json"),
            "exit_code": exit_code,
            "run_folder": str(folder.absolute()),
        }
        write_out(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    with console.capture() as rendered:
        console.print(results_table(result.levels))
        for note in printable_notes(result):
            console.print(Text(note))
        console.print(Text(f"results: {printable(str(folder / RESULT_NAME))}"))
    write_out(rendered.get())
