"""The command `pdwatch`.

Commands import what they need when they run, so that `--help` answers at once. `main` is the only place that
turns errors, of whichever portion, into one line on stderr and exit code 3.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from pdwatch.gate.printable import printable

EXIT_COULD_NOT_RUN = 3
# what the parser makes of Ctrl-C; no command of ours ends with it
_EXIT_OF_SIGINT = 130

# where each command is; groups have commands of their own.
_COMMANDS: Final = {
    "gate": "gate:gate",
    "report": "report:report",
    "prove": "prove:prove",
    "load": "load:load",
    "load-worker": "load_worker:load_worker",
    "up": "deployment:up",
    "down": "deployment:down",
    "status": "deployment:status",
    "faults": "deployment:faults",
}
_GROUPS: Final = {"kernels": "kernels:kernels", "export": "export:export"}


def build_app(command: str | None = None) -> typer.Typer:
    """The command line; with `command` of that one alone, where it is one, so that no other's imports cost anything."""
    app = typer.Typer(
        name="pdwatch",
        help=(
            "Drive a prefill/decode deployment at rising concurrency, judge its tool calls against an eager "
            "reference, and gate on the verdict.\n\n"
            "Exit codes of `gate` and `report`: 0 PASS, 1 FAIL, 2 INCONCLUSIVE, 3 could not run."
        ),
        epilog="Begin with `pdwatch gate`: it starts the embedded deployment and needs neither GPU nor network.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    is_known = command in _COMMANDS or command in _GROUPS
    for name, place in _COMMANDS.items():
        if name == command or not is_known:
            app.command(name)(_load(place))
    for name, place in _GROUPS.items():
        if name == command or not is_known:
            app.add_typer(_load(place))
    # a second command keeps the first one's name a part of the command line.
    app.command()(version)
    return app


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"pdwatch.gate.commands.{module}"), name)


def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version of pdwatch."""
    from importlib import metadata

    number = metadata.version("pdwatch")
    print(f'{{"pdwatch": "{number}"}}' if as_json else number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    A fault of ours exits 3 as well, after its traceback: nothing but a verdict may exit 1.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app = build_app(words[0] if words else None)
        result = app(args=words, prog_name="pdwatch", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        result = _EXIT_OF_SIGINT
    except (BrokenPipeError, SystemExit):
        # whoever read our output has seen enough, and the parser makes `exit 1` of that, which would mean FAIL;
        # keep the interpreter from tripping over the pipe at exit
        sys.stdout = sys.stderr
        return EXIT_COULD_NOT_RUN
    except Exception as error:
        message = _one_line(error)
        if message is None:
            print("\n".join(map(printable, traceback.format_exc().splitlines())), file=sys.stderr)
            message = f"internal fault ({type(error).__name__}), please report it"
        print(f"error: {message}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    if result == _EXIT_OF_SIGINT:
        print("error: stopped by SIGINT", file=sys.stderr)
        return EXIT_COULD_NOT_RUN
    return result if isinstance(result, int) else 0


def _one_line(error: Exception) -> str | None:
    """The message of an error that a user can act on; None for a fault of ours, which deserves its traceback."""
    if isinstance(error, OSError):
        where = f" `{error.filename}`" if error.filename else ""
        text = f"{error.strerror or error}{where}"
    elif type(error).__module__.startswith("pdwatch."):
        text = str(error)
    elif hasattr(error, "format_message"):
        # a mistake on the command line, as the parser found it
        text = f"{error.format_message().rstrip('.')}{_refused_value(error)}. See `{_help_command(error)}`."
    else:
        return None
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return printable(" ".join((text + notes).split()))


def _refused_value(error: Exception) -> str:
    """The value that a type refused; the parser's own message leaves it out."""
    causes = getattr(error.__cause__, "errors", None)
    return f": `{causes()[0]['input']}`" if callable(causes) else ""


def _help_command(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'pdwatch'} --help"


if __name__ == "__main__":
    sys.exit(main())
