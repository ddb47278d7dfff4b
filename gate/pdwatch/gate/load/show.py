"""The result of a load run on stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from pdwatch.gate.commands.output import write_out
from pdwatch.gate.load.results import LoadResult
from pdwatch.gate.load.run import RESULT_NAME
from pdwatch.gate.load.sheet import plain_lines, rich_table
from pdwatch.gate.load.table import printable_notes, results_sheet
from pdwatch.gate.printable import printable


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
    sheet = results_sheet(result.levels)
    under = [*printable_notes(result), f"results: {printable(str(folder / RESULT_NAME))}"]
    if not sys.stdout.isatty():
        write_out("\n".join((*plain_lines(sheet), *under)) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    with console.capture() as rendered:
        console.print(rich_table(sheet))
        for line in under:
            console.print(Text(line))
    write_out(rendered.get())
