"""``loom ops``: which way each operator of PyTorch goes on the device in eager mode."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from torch_loom.cli.errors import Usage

app = typer.Typer(help="List operators and the way each goes on the device.", add_completion=False)


@app.command()
def ops(
    pattern: Annotated[str, typer.Argument(help="Only operators whose name contains this.")] = "",
    route: Annotated[str, typer.Option(help="Only this route: native, decomposed, compiled or host.")] = "",
    totals: Annotated[bool, typer.Option("--totals", help="Only how many operators go each way.")] = False,
) -> None:
    """List aten's operators with their route."""
    import torch  # noqa: F401

    import torch_loom  # noqa: F401  registers the device
    from torch_loom.eager.routes import ROUTES, routes

    if route and route not in ROUTES:
        raise Usage(f"no route '{route}'; choose from {', '.join(ROUTES)}")
    found = [r for r in routes() if pattern in r.name and route in ("", r.route)]
    if not totals:
        for r in found:
            typer.echo(f"{r.name:56}{r.route}")
    count = Counter(r.route for r in found)
    for name, meaning in ROUTES.items():
        typer.echo(f"{count[name]:>6} {name}: {meaning}")
