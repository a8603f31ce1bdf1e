"""Import a module once another one has been imported, without importing that one now.

Dynamo keeps its registry of device interfaces in ``torch._dynamo.device_interface`` and offers no entry
point for it. Importing Dynamo while torch itself is being imported would double the import time of every
program that never compiles, so the registration waits for that import.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType


def after_import(watched: str, module: str) -> None:
    """Import ``module`` once ``watched`` is imported (at once if it already is)."""
    if watched in sys.modules:
        importlib.import_module(module)
        return
    sys.meta_path.insert(0, _Watcher(watched, module))


class _Watcher(importlib.abc.MetaPathFinder):
    def __init__(self, watched: str, module: str) -> None:
        self.watched, self.module = watched, module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.watched:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.module)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader, module: str) -> None:
        self.inner, self.module = inner, module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self.inner
            module.__loader__ = self.inner
        importlib.import_module(self.module)
