"""``loom demo``: a sentence encoder with real weights, on the CPU and on the simulated chip.

The order matters for errors: arguments first, then the places to write, then the model, then the work. A
failure at any point leaves nothing behind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from torch_loom.cli.errors import Usage
from torch_loom.cli.files import PendingFile

app = typer.Typer(add_completion=False)

SENTENCES = [
    "The cat sits on the mat.",
    "A kitten rests on a rug.",
    "Hello",
    "How do I reset my password?",
    "I have forgotten my password and would like to set a new one, please.",
    "A matrix unit multiplies tiles of two operands and adds up the products.",
    "Rain is expected in the north tomorrow.",
    "The stock market fell sharply on Monday after the central bank raised its interest rate by half a "
    "percentage point, the largest step in two decades, and warned that further increases would follow "
    "if prices kept rising faster than wages through the second half of the year.",
]
ARTIFACTS = Path("artifacts") / "demo"


@app.command("demo")
def demo(
    sentences: Annotated[
        list[str] | None, typer.Argument(help="Sentences to encode; default: eight, short and long.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the figures.")] = None,
    artifacts: Annotated[Path, typer.Option("--artifacts", help="Folder for the kernels at every level.")] = ARTIFACTS,
    batch: Annotated[int | None, typer.Option("--batch", help="Sentences per batch; default: all.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Type of the model on the device.")] = "float16",
) -> None:
    """Encode sentences on the CPU (fp32) and on the simulated chip (torch.compile), and compare."""
    texts = check_sentences(SENTENCES if sentences is None else sentences)
    if batch is not None and batch < 1:
        raise Usage(f"--batch must be at least 1, got {batch}")

    from torch_loom.integrations.huggingface import MissingExtra, check_dtype, load_minilm
    from torch_loom.integrations.huggingface.report import NoDevice, compare
    from torch_loom.layout import UnsupportedDtype
    from torch_loom.profiler import Artifacts, ArtifactsError, report_console

    console = report_console()
    try:
        device_dtype = check_dtype(dtype)
        with ExitStack() as places:
            pending = places.enter_context(PendingFile(json_file)) if json_file else None
            with Artifacts(artifacts) as folder:
                result = compare(load_minilm(), texts, batch or len(texts), device_dtype, console)
                paths = {kernel.name: folder.write(kernel) for kernel in result.kernels}
            if pending:
                pending.commit(json.dumps(result.figures(paths), indent=1) + "\n")
    except (UnsupportedDtype, MissingExtra, NoDevice, ArtifactsError) as error:
        raise Usage(error) from None
    result.print(console)
    console.print(f"artifacts: {folder.folder}")


def check_sentences(sentences: Sequence[str]) -> list[str]:
    """The sentences, if there are any and none is blank."""
    if not any(text.strip() for text in sentences):
        raise Usage("the sentence list is empty")
    for number, text in enumerate(sentences):
        if not text.strip():
            raise Usage(f"sentence {number} is empty")
    return list(sentences)
