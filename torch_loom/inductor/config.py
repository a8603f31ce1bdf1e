"""Settings of the compiler for ``spyre``: ``torch_loom.inductor.config``.

Every entry may be set as an attribute, for a block with ``config.patch(compile_workers=0)``, or by the environment
variable named beside it, which is read when this module is imported.
"""

import os
import sys

from torch.utils._config_module import install_config_module

# Processes that compile kernels beside this one; None: one less than the processors, at most 8.
# TORCH_LOOM_COMPILE_WORKERS
compile_workers: int | None = None if (_text := os.environ.get("TORCH_LOOM_COMPILE_WORKERS")) is None else int(_text)

install_config_module(sys.modules[__name__])
