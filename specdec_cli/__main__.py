"""Entry point: errors become one line on stderr and an exit code."""

from __future__ import annotations

import re
import signal
import sys
import warnings
from collections.abc import Sequence

from specdec_cli import streams
from specdec_cli.errors import HUNG_UP, INTERRUPTED, TERMINATED, SpecdecError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    import typer

    from specdec_cli.cli import app

    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # libraries' warnings are for developers; -W shows them
    words = _with_defaults(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=words, prog_name="specdec", standalone_mode=False)
    except SpecdecError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:  # a wrong option, before any command ran
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        message = " ".join(error.format_message().replace(" Value error,", "").split())  # pydantic's words
        return _fail(message + hint, error.exit_code) if message else error.exit_code
    except OSError as error:  # a full disk, say
        return _fail_at(error)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except SystemExit:  # Typer's way of telling that the reader of its help has left
        streams.leave_stdout()
        return 0
    return code if isinstance(code, int) else 0


def _with_defaults(arguments: Sequence[str]) -> list[str]:
    """The one option whose value may be left out, with its value: Typer knows no such options."""
    words = list(arguments)
    for i, word in enumerate(words):
        if word == "--":
            break
        if word == "--fail-if-slower" and not re.match(r"[-+]?[\d.]", words[i + 1] if i + 1 < len(words) else ""):
            words[i] = "--fail-if-slower=1"
    return words


def _fail(message: str, exit_code: int) -> int:
    print(f"specdec: {message}", file=sys.stderr)
    return exit_code


def _fail_at(error: OSError) -> int:
    """Where it was, and what."""
    where = f"{error.filename}: " if error.filename else ""
    return _fail(f"{where}{error.strerror or error}", 1)


class _Signals:
    """SIGTERM and SIGHUP as Ctrl-C: an interrupted command writes what it has. Only the exit code differs then."""

    def __init__(self) -> None:
        self._came: int | None = None
        self._codes = {signal.SIGTERM: TERMINATED}
        if sys.platform != "win32":
            self._codes[signal.SIGHUP] = HUNG_UP
        for number in self._codes:
            if signal.getsignal(number) is signal.SIG_DFL:  # not where the caller has it ignored, as nohup has
                signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, _: object) -> None:
        self._came = number
        raise KeyboardInterrupt

    def exit_code(self, code: int) -> int:
        """Of a command that ended with `code`."""
        return code if self._came is None or code != INTERRUPTED else self._codes[signal.Signals(self._came)]


def run() -> None:
    """The console script."""
    signals = _Signals()
    streams.prepare()
    try:
        code = _flushed(main())
    except KeyboardInterrupt:  # once more, while the first was told
        code = INTERRUPTED
    sys.exit(signals.exit_code(code))


def _flushed(code: int) -> int:
    """The exit code, once stdout has everything: Python would flush it at exit, and fail with a traceback."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        streams.leave_stdout()
    except OSError as error:
        streams.leave_stdout()
        return code or _fail_at(error)
    return code


if __name__ == "__main__":
    run()
