"""``loom warmup``: compile the programs of common eager operators into the cache."""

from __future__ import annotations

from typing import Annotated

import typer

from torch_loom.cli.errors import Usage

app = typer.Typer(help="Compile common eager operators into the cache.", add_completion=False)

DTYPES = ("float16", "bfloat16", "float32")


@app.command()
def warmup(
    dtype: Annotated[list[str], typer.Option(help="Dtype; may be given several times.")] = ["float16"],  # noqa: B006
    backward: Annotated[bool, typer.Option(help="Also their derivatives.")] = True,
    match: Annotated[str, typer.Option(help="Only calls whose label contains this, such as 'rank 2'.")] = "",
    verbose: Annotated[bool, typer.Option("--verbose", help="One line per operator.")] = False,
) -> None:
    """Run each common operator once, so that later processes compile nothing for them."""
    for name in dtype:
        if name not in DTYPES:
            raise Usage(f"no dtype '{name}'; choose from {', '.join(DTYPES)}")
    import torch

    import torch_loom  # noqa: F401  registers the device
    from torch_loom.eager import warmup as common

    calls = compiled = 0
    fell: set[str] = set()
    with torch.spyre.use_eager_mode("strict"):  # type: ignore[attr-defined]
        for done in common.run(tuple(getattr(torch, d) for d in dtype), backward, match):
            calls += 1
            compiled += done.compiled
            fell.update(done.fallbacks)
            if verbose:
                typer.echo(f"{done.name:44}{done.compiled:>4} compiled")
    typer.echo(f"{calls} calls, {compiled} programs compiled")
    if fell:
        typer.echo("on the CPU: " + ", ".join(sorted(fell)))
