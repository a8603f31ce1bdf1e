"""A process that compiles kernels for another one: a request a line on stdin, an answer a line on stdout.

It imports neither torch nor Inductor. Whatever goes wrong ends it: the process that asked then compiles the
kernel itself and reports the error where the user sees it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO

from .. import arch, ktir, scheduler


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests ``{"text", "chip", "path"}`` with ``{"path"}`` once the SpyreCode directory is there."""
    for line in requests:
        wanted = json.loads(line)
        program = ktir.load(wanted["text"])
        scheduler.compile(program, "kernel", arch.load(wanted["chip"])).save(wanted["path"])
        print(json.dumps({"path": wanted["path"]}), file=answers, flush=True)


if __name__ == "__main__":
    # The pipe belongs to the answers alone; whatever else is printed goes to stderr.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, channel)
