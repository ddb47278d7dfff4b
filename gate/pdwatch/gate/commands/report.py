"""`pdwatch report`: everything derived, once more, from the journals of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, of a finished or a killed run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr while working.")] = False,
) -> None:
    """Rebuild tables, verdict, JUnit and report of a run from its raw data.

    No server is asked: answers are judged by the reference scores that the run stored.
    A run that was killed is INCONCLUSIVE at best, and FAIL when what it had
    recorded shows a failure.

    Exit codes: 0 PASS, 1 FAIL, 2 INCONCLUSIVE, 3 could not read.

    Example:

      pdwatch report runs/20261201T124501Z-seed1
    """
    from pdwatch.gate.commands.summary import print_verdict
    from pdwatch.gate.console import open_talk
    from pdwatch.gate.derive import derive, stored_reference
    from pdwatch.gate.run_folder import RunFolder, State

    folder = RunFolder.open(directory)
    with open_talk(quiet) as talk, stored_reference(folder.reference_scores) as reference:
        talk.begin("judging the answers")
        verdict = derive(
            folder,
            reference,
            finished=folder.record.state is State.COMPLETE,
            progress=lambda done: talk.advance(done, f"{done} requests"),
        )
        talk.end()
    print_verdict(folder, verdict, as_json)
    raise typer.Exit(verdict.exit_code)
