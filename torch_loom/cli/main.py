"""Entry point of ``loom``: a table of subcommands, loaded when they run.

``loom --help`` must be instant, so the table carries each command's one-line help and nothing is imported
until a command is named. Every usage error is one line on stderr and exit status 2.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from torch_loom.cli.errors import Usage

# The base class of all parse errors has no public name of its own.
ParseError: type[Exception] = typer.BadParameter.__mro__[1]


INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it."""


@dataclass(frozen=True)
class Entry:
    """A subcommand: ``app`` is a Typer object in ``module``; one with a single command is that command."""

    module: str
    app: str
    help: str


COMMANDS = {
    "demo": Entry("torch_loom.cli.demo", "app", "Run a sentence encoder on the simulated chip."),
    "ktir": Entry("torch_loom.cli.ktir", "app", "Check, run and print KTIR files."),
    "opt": Entry("torch_loom.cli.opt", "app", "Run passes on a KTIR file."),
    "schedule": Entry("torch_loom.cli.schedule", "app", "Compile a KTIR file down to SpyreCode."),
    "chip": Entry("torch_loom.cli.chip", "app", "Show chip descriptions."),
    "asm": Entry("torch_loom.cli.asm", "asm_app", "Assemble text into a SpyreCode directory."),
    "disasm": Entry("torch_loom.cli.asm", "disasm_app", "Print a SpyreCode directory or binary as text."),
    "ops": Entry("torch_loom.cli.ops", "app", "List operators and the way each goes on the device."),
    "warmup": Entry("torch_loom.cli.warmup", "app", "Compile common eager operators into the cache."),
    "time": Entry("torch_loom.cli.time", "app", "Modelled time of a program, and why."),
    "trace": Entry("torch_loom.cli.trace", "app", "Timeline of a program for the Perfetto viewer."),
    "estimate": Entry("torch_loom.cli.estimate", "app", "Time and memory of a language model, without weights."),
    "report": Entry("torch_loom.cli.report", "app", "Page or table about programs."),
}


def load(name: str) -> Any:
    """The real command object of a table entry."""
    entry = COMMANDS[name]
    command: Any = typer.main.get_command(getattr(importlib.import_module(entry.module), entry.app))
    command.name = name
    return command


class LazyCommand(TyperCommand):
    """Stands for a command in listings; parsing its arguments loads and uses the real one."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return load(str(self.name)).make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """The top level: commands come from the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, entry in COMMANDS.items() if importlib.util.find_spec(entry.module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        return LazyCommand(cmd_name, callback=lambda: None, help=COMMANDS[cmd_name].help)


cli = typer.Typer(
    cls=LazyGroup,
    help="torch-loom: run, check, time and look into programs for a Spyre-class accelerator.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(f"torch-loom {version('torch-loom')}")
    except PackageNotFoundError:
        raise Usage("torch-loom runs from a source folder that is not installed") from None
    raise typer.Exit


@cli.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run(args: Sequence[str]) -> int:
    """Run ``loom`` with the given arguments; returns the exit status."""
    command = " ".join(["loom", *(a for a in args[:1] if a in COMMANDS)])
    try:
        status = typer.main.get_command(cli).main(
            args=list(args) or ["--help"], prog_name="loom", standalone_mode=False
        )
        if status == INTERRUPTED:
            # Typer turns a keyboard interrupt into this status and says nothing.
            raise KeyboardInterrupt
    except ParseError as error:
        lines = str(getattr(error, "format_message", error.__str__)()).splitlines()
        if not lines:
            # A group that was named without a subcommand has shown its help.
            return 0
        print(f"{command}: {lines[0]} (see '{command} --help')", file=sys.stderr)
        return 2
    except Usage as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        print(f"{command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has what it wanted; keep Python from complaining again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0


def app() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    app()
