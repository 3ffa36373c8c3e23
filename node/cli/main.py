"""The `regrow` command. Errors become one line on stderr and the exit code of docs/contract.md; never a traceback.

Nothing slow is imported here: each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from node import __version__
from node.cli import advise, control, lab, leave, monitor, node_commands, prepare, simulate, swarm, try_out, watch
from node.plain_text import printable
from node.ports import PeerError, UnusableError

OK, FAILED, BAD_USE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED = 130
PIPE_CLOSED = 141

app = typer.Typer(
    name="regrow",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Train one language model on many people's machines, which come and go.

Each node holds one *stage* of the model; activations and gradients go from node to node.

See it work, on this machine alone: **regrow demo**

Help a run that somebody invited you to: **regrow join INVITE**

Start your own: **regrow init --preset tiny --data text.txt > run.yaml**, then **regrow start run.yaml**
""",
)


def _version(asked: bool) -> None:
    if asked:
        from protocol.version import PROTOCOL_VERSION

        print(f"regrow {__version__} (protocol {PROTOCOL_VERSION})")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""


for part in (try_out, simulate, lab, node_commands, leave, prepare, advise, swarm, watch, monitor, control):
    part.add_to(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit code."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = _invoke(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted")
    except typer.Abort:
        return _fail(INTERRUPTED, "interrupted")
    except BaseExceptionGroup as group:
        return _of_group(group)
    except (TyperException, UnusableError, PeerError, ValueError, OSError) as error:
        return _of_error(error)
    return code if isinstance(code, int) else OK


def _invoke(args: Sequence[str]) -> object:
    """What the command returns. Not `app()`: that would turn Ctrl-C into an exit without a word."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("regrow", list(args)) as context:
            return command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code


def _of_error(error: BaseException) -> int:
    match error:
        case UnusableError(code=code):
            return _fail(code, str(error))
        case PeerError():
            return _fail(UNREACHABLE, str(error))
        case TyperException():
            return _fail(BAD_USE, f"{_usage(error)}")
        case OSError(strerror=str(reason), filename=filename) if filename is not None:
            return _fail(BAD_USE, f"{filename}: {reason}")
        case _:
            return _fail(BAD_USE, str(error))


def _usage(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "regrow"
    message = error.format_message().strip()
    return f"{message} (see {command} --help)" if message else f"see {command} --help"


def _of_group(group: BaseExceptionGroup[BaseException]) -> int:
    """The user's errors of a TaskGroup; anything else in it is a defect and keeps its traceback."""
    known, rest = group.split((UnusableError, PeerError, KeyboardInterrupt))
    if rest is not None or known is None:
        raise group
    error: BaseException = known
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return _fail(INTERRUPTED, "interrupted") if isinstance(error, KeyboardInterrupt) else _of_error(error)


def _fail(code: int, sentence: str) -> int:
    for line in sentence.splitlines():
        print(f"regrow: {printable(line)}", file=sys.stderr)
    return code
