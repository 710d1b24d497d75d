"""What both commands do around their work: errors become one line and a number, and nothing ends in a traceback.

``run`` parses the arguments with click, calls the command, and turns whatever ends it into an exit code: 0 fine, 1 the
data is bad (or the system refused), 2 usage, 3 not what was expected, and 128 + n for signal n, as a shell counts. A
terminated command unwinds like an interrupted one, so that outputs which are not whole do not appear. Text that comes
from files is escaped before it is shown.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from ..errors import HurrayError
from .standard import standard_streams

__all__ = [
    "BAD_DATA",
    "STANDARD_OUTPUT",
    "UNEXPECTED",
    "CliError",
    "blamed",
    "counted",
    "is_standard_output",
    "note",
    "print_json",
    "print_table",
    "printable",
    "progress_bar",
    "readable_size",
    "refuse_terminal",
    "run",
    "say",
    "usage_error",
]

STANDARD_OUTPUT = "standard output"

BAD_DATA = 1
USAGE = 2
UNEXPECTED = 3
_SIGNALLED = 128

_ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PATIENCE = 0.5  # seconds of work before a progress bar appears
_LEAST_WIDTH = 80  # rich would leave columns out on a narrower terminal; its own wrapping is better than that
# names that nobody has given: of outputs that are not whole yet
_UNASKED = re.compile(r"(^|/)\.[^/]*\.[0-9a-f]{12}\.tmp(/|$)|^/proc/self/fd/")
_UNBOUNDED = 1 << 20  # columns of an output that is not a terminal: a name is never cut


class CliError(Exception):
    """The end of a command, told in one line."""

    def __init__(self, message: str, code: int = BAD_DATA) -> None:
        super().__init__(message)
        self.code = code


class _Ended(BaseException):
    """A signal asked the process to end. Not an Exception, so that nothing on the way takes it for a fault."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def usage_error(message: str) -> NoReturn:
    """End the command with a usage error."""
    raise click.UsageError(message)


def run(command: click.Command, name: str, argv: Sequence[str] | None) -> int:
    """Run ``command`` as the program ``name`` and return its exit code; None stands for this process's arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with standard_streams(), _patient_text(sys.stdout), _patient_text(sys.stderr), _signals():
        try:
            code = _invoke(command, name, arguments)
            with blamed(STANDARD_OUTPUT):
                sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            return _SIGNALLED + signal.SIGINT
        except _Ended as end:
            return _SIGNALLED + end.number
        except BrokenPipeError:  # whoever read the output has seen enough
            _abandon(sys.stdout)
            return _SIGNALLED + getattr(signal, "SIGPIPE", 13)
        except OSError as error:  # standard output itself, since the command's own were caught: a full disk
            _abandon(sys.stdout)
            _complain(name, _system_words(error))
            return BAD_DATA


@contextmanager
def blamed(target: str) -> Iterator[None]:
    """What the system refuses without a name, or by one that nobody has given, is about ``target``, as people know it.

    So says a full disk.
    """
    try:
        yield
    except OSError as error:
        name = error.filename
        if (name is None and error.errno is not None and error.strerror == os.strerror(error.errno)) or (
            isinstance(name, str | bytes) and _UNASKED.search(os.fsdecode(name))
        ):
            error.filename = target
        raise


def say(line: str) -> None:
    """A line of the answer, on standard output."""
    _answer(f"{printable(line)}\n")


def note(name: str, message: str) -> None:
    """A line beside the answer, on standard error."""
    sys.stderr.write(f"{name}: {printable(message)}\n")


def printable(text: str) -> str:
    """``text`` with all escaped that the output would not show as itself.

    That is controls, ANSI sequences, bidi marks, surrogates, and what its encoding does not have.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def print_table(table: Table) -> None:
    """A table on standard output, as wide as it needs unless that is a terminal."""
    console = _plain_console(sys.stdout)
    with console.capture() as captured:  # by itself, rich would end the process where a pipe is closed
        console.print(table)
    _answer(captured.get())


def print_json(value: Any) -> None:
    """One JSON document on standard output; characters beyond ASCII are escaped, so any terminal takes it."""
    _answer(json.dumps(value, indent=2, allow_nan=False) + "\n")


def counted(number: int, noun: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def readable_size(size: float) -> str:
    """Bytes in the largest unit that leaves at least 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A function that is told bytes done and bytes in all; None where standard error is no terminal to show it on."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=_plain_console(sys.stderr), transient=True)
    task = bar.add_task(what, total=None)
    started = time.monotonic()

    def advance(done: int, total: int) -> None:
        if not bar.live.is_started and time.monotonic() - started > _PATIENCE:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        bar.stop()


def is_standard_output(target: str) -> bool:
    """True if what is written to ``target`` goes where standard output goes, by whatever name (``/dev/stdout``)."""
    if target == "-":
        return True
    try:
        return os.path.samestat(Path(target).stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # no such file yet, or a standard output that is no file
        return False


def refuse_terminal(target: str) -> None:
    """Bytes do not go to a terminal, whether it is standard output (``-``) or named by a path."""
    if target == "-":
        is_terminal = sys.stdout.isatty()
    else:
        try:
            is_terminal = Path(target).is_char_device() and _is_terminal(target)
        except OSError:
            return  # nothing is there yet, or writing will say what is wrong
    if is_terminal:
        usage_error("the output is a terminal; name a file, or pipe it into something")


def _answer(text: str) -> None:
    with blamed(STANDARD_OUTPUT):
        sys.stdout.write(text)


def _plain_console(stream: TextIO) -> Console:
    """A rich console that takes text as it is: no markup, no guessing, and no bound on width but a terminal's own."""
    width = None if stream.isatty() else _UNBOUNDED
    console = Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
    console.width = max(console.width, _LEAST_WIDTH)
    return console


def _is_terminal(path: str) -> bool:
    device = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    try:
        return os.isatty(device)
    finally:
        os.close(device)


def _invoke(command: click.Command, name: str, arguments: list[str]) -> int:
    try:
        for argument in arguments:
            if "\0" in argument:  # the system has no such names, and Python no class of its own for that
                usage_error(f"the argument {argument!r} has a NUL in it")
        with command.make_context(name, arguments) as context:
            code = command.invoke(context)
            return code if isinstance(code, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        _complain(name, error.format_message())
        return error.exit_code
    except CliError as error:
        _complain(name, str(error))
        return error.code
    except HurrayError as error:
        _complain(name, str(error))
        return BAD_DATA
    except BrokenPipeError:
        raise
    except OSError as error:
        _complain(name, _system_words(error))
        return BAD_DATA
    except MemoryError:
        _complain(name, "there is not enough memory")
        return BAD_DATA


def _complain(name: str, message: str) -> None:
    note(name, f"error: {message}")


def _system_words(error: OSError) -> str:
    if error.errno == errno.EBADF:
        return "a standard stream that is needed here is closed"
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return f"{where}{error.strerror or error}"


@contextmanager
def _patient_text(stream: TextIO) -> Iterator[None]:
    """The stream shows what its encoding lacks as escapes instead of failing."""
    if not isinstance(stream, io.TextIOWrapper) or stream.errors == "backslashreplace":
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        stream.reconfigure(errors=before)


@contextmanager
def _signals() -> Iterator[None]:
    """Signals that end a process unwind it; those that somebody ignores or handles already are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> NoReturn:
        raise _Ended(number)

    changed = [number for number in _ENDING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _abandon(stream: TextIO) -> None:
    """Nothing more can be written there, and the interpreter must not try again when it ends."""
    if stream is sys.__stdout__:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
