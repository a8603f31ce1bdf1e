"""``loom estimate``: time and memory of a language model on the chip, without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torch_loom.cli.errors import Usage

app = typer.Typer(add_completion=False)


@app.command("estimate")
def estimate(
    config: Annotated[
        str, typer.Argument(help="Name of a bundled configuration, or a config.json; 'list' lists names.")
    ],
    batch: Annotated[int, typer.Option("--batch", help="Sequences at once.")] = 1,
    prompt: Annotated[int, typer.Option("--prompt", help="Tokens of the prompt.")] = 1024,
    generate: Annotated[int, typer.Option("--generate", help="Tokens to generate per sequence.")] = 128,
    kernels: Annotated[int, typer.Option("--kernels", min=1, help="Kernels to list per step.")] = 8,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for all figures.")] = None,
) -> None:
    """Prefill time, time per token, use of the chip, memory, and the kernels that cost most."""
    from contextlib import nullcontext

    from rich.console import Console

    from torch_loom.arch import ArchError
    from torch_loom.cli.files import PendingFile
    from torch_loom.integrations.huggingface import MissingExtra
    from torch_loom.integrations.huggingface import estimate as room
    from torch_loom.integrations.huggingface.estimate.view import show
    from torch_loom.profiler import ClockError, compile_progress, report_console

    if config == "list":
        typer.echo("\n".join(room.bundled()))
        return
    with PendingFile(json_file) if json_file else nullcontext() as pending:
        try:
            with compile_progress(Console(stderr=True), config) as line:
                result = room.estimate(config, batch, prompt, generate, line.stage)
        except (room.EstimateError, MissingExtra, ClockError, ArchError) as error:
            raise Usage(error) from None
        if pending is not None:
            pending.commit(json.dumps(result.as_dict(), indent=1) + "\n")
    show(result, report_console(), kernels)
