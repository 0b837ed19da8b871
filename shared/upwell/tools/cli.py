"""The `upwell` command: finds its subcommands by entry point and turns errors into one clear sentence.

Subcommands join through the entry-point group `upwell.commands` (name -> `typer.Typer` or a function); a name with a
dot, `policy.check`, is a subcommand of a subcommand. Only the requested one is imported, so a device without the
cloud extra has a working command line.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points, version
from types import FrameType
from typing import Annotated, Any

import typer

from upwell.shared.errors import EXIT_FAILED, ConfigError, UpwellError
from upwell.shared.platform.collection_pause import without_collections
from upwell.tools.terminal import print_error

EXIT_USAGE = 2


def build_app(arguments: Sequence[str], *, names_alone: bool = False) -> typer.Typer:
    """The command line for these arguments: the named subcommand alone, or all of them for `--help`.

    With `names_alone` nothing is imported, and the commands do nothing.
    """
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(help="Hybrid edge-cloud inference: an answer within the deadline, with a reason.")(_options)
    entries = sorted(entry_points(group="upwell.commands"), key=lambda entry: entry.name)
    asked = [entry for entry in entries if _is_asked(entry.name, arguments)]
    groups: dict[str, typer.Typer] = {}
    for entry in [] if arguments[:1] == ["--version"] else asked or entries:
        group, _, name = entry.name.rpartition(".")
        if group and group not in groups:
            groups[group] = typer.Typer(no_args_is_help=True, help=_GROUPS.get(group))
            app.add_typer(groups[group], name=group)
        _add(groups.get(group, app), name, _nothing if names_alone else entry.load())
    return app


_GROUPS: Mapping[str, str] = {
    "cases": "List, choose, export, label and delete the cases that devices collected.",
    "fleet": "Run a fleet service, and manage its devices.",
    "model": "Describe, quantize, pack, sign and check models for the device.",
    "partition": "Measure a model on both sides, find the best cut, write the halves and verify them.",
    "pipeline": "Check pipelines of cameras, models and events.",
    "policy": "Check, explain, calibrate and simulate a routing policy.",
    "release": "Make, sign, publish and check releases: bundles, policy and pipelines as one signed unit.",
    "spool": "List or drop the cases that an agent keeps for the cloud.",
}


def _is_asked(name: str, arguments: Sequence[str]) -> bool:
    """Whether the first arguments name this entry, or its group if they name nothing more."""
    parts = name.split(".")
    known = [argument for argument in arguments[: len(parts)] if not argument.startswith("-")]
    return bool(known) and parts[: len(known)] == known


def _add(app: typer.Typer, name: str, command: Any) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)


def _nothing() -> None:
    """A command of which only the name is needed."""


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"upwell {version('upwell')}")
        raise typer.Exit


def _options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `upwell` itself."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the check failed, 2 wrong use or a wrong file, 130 interrupted."""
    try:
        words = _words_to_complete()
        with without_collections():
            app = build_app(sys.argv[1:]) if words is None else build_app(words, names_alone=len(words) < 2)
        signal.signal(signal.SIGINT, _interrupt)  # from here on the command handles interrupts
        app(prog_name="upwell")
    except UpwellError as error:
        print_error(f"error: {error}")
        sys.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        place = error.filename or "the disk of the output or of temporary files (TMPDIR)"
        print_error(f"error: {place}: {error.strerror}; make room, and run it again")
        sys.exit(EXIT_FAILED)


def _words_to_complete() -> list[str] | None:
    """The words after `upwell` in a line that a shell wants to complete; None if no shell asks."""
    if "_UPWELL_COMPLETE" not in os.environ:
        return None
    return os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`; during an import, only once that has ended.

    Commands import compiled packages when they need them, and an interrupt within such an import surfaces as an
    ImportError of the package, or is lost.
    """
    outermost = None
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            outermost = frame
        frame = frame.f_back
    if outermost is None:
        raise KeyboardInterrupt

    def leave(returning: FrameType, event: str, _: object) -> None:
        if returning is outermost and event == "return":
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(leave)
