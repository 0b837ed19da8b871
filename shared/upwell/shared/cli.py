"""The `upwell` command: finds its subcommands by entry point and turns errors into one clear sentence.

Subcommands join by the entry-point group `upwell.commands` (name -> `typer.Typer` or a function) and are
imported only when they run, so `upwell --help` on a device needs no engine and no runtime.
"""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points, version

import click
import typer
from rich.console import Console

from upwell.shared.errors import ConfigError, UpwellError

EXIT_FAILED = 1
EXIT_USAGE = 2


class LazyCommands(click.Group):
    """A click group whose commands are the entry points of one group, loaded when asked for."""

    def __init__(self, group: str, **attrs: object) -> None:
        super().__init__(**attrs)  # type: ignore[arg-type]  # click's own keyword arguments, passed through
        self._entries: dict[str, EntryPoint] = {entry.name: entry for entry in entry_points(group=group)}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Names of all installed subcommands."""
        return sorted(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        """Load one subcommand, or None where there is none of that name."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        loaded = entry.load()
        if isinstance(loaded, typer.Typer):
            command = typer.main.get_command(loaded)
            command.name = cmd_name
            return command
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(cmd_name)(loaded)
        return typer.main.get_command(app)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the check failed, 2 wrong use or a wrong file."""
    app = LazyCommands("upwell.commands", help="Hybrid edge-cloud inference.", no_args_is_help=True)
    click.version_option(version("upwell"), prog_name="upwell")(app)
    try:
        app(prog_name="upwell")
    except UpwellError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {error}", markup=False)
        sys.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
