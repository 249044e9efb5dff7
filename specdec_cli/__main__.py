"""Entry point: errors become one line on stderr and an exit code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from specdec_cli.errors import INTERRUPTED, SpecdecError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    import typer

    from specdec_cli.cli import app

    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # libraries' warnings are for developers; -W shows them
    try:
        code = app(args=arguments, prog_name="specdec", standalone_mode=False)
    except SpecdecError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:  # a wrong option, before any command ran
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        message = " ".join(error.format_message().split())
        return _fail(message + hint, error.exit_code) if message else error.exit_code
    except OSError as error:  # a full disk, say
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _fail(message: str, exit_code: int) -> int:
    print(f"specdec: {message}", file=sys.stderr)
    return exit_code


def run() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
