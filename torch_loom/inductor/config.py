"""Settings of the compiler for ``spyre``: ``torch_loom.inductor.config``.

Every entry may be set as an attribute, for a block with ``config.patch(compile_workers=0)``, or by the environment
variable named beside it, which is read when this module is imported. The switches never change what a program
computes beyond the order of roundings.
"""

import os
import sys
from typing import TYPE_CHECKING

from torch.utils._config_module import Config, install_config_module

if TYPE_CHECKING:
    from torch.utils._config_typing import *  # noqa: F403

# Divide contractions by modelled time; off: batches or rows over the cores, small tiles. TORCH_LOOM_WORK_DIVISION
work_division: bool = Config(default=True, env_name_default="TORCH_LOOM_WORK_DIVISION")

# Norms and softmax over the rows of a product join its kernel where that is faster. TORCH_LOOM_FUSION
fusion: bool = Config(default=True, env_name_default="TORCH_LOOM_FUSION")

# Products of one left operand become one kernel. TORCH_LOOM_JOINT_PRODUCTS
joint_products: bool = Config(default=True, env_name_default="TORCH_LOOM_JOINT_PRODUCTS")

# Two products in a row become one kernel, the layer between them stays in LX. TORCH_LOOM_CHAINS
chains: bool = Config(default=True, env_name_default="TORCH_LOOM_CHAINS")

# Cores share reduced extents and add their partial results over the ring. TORCH_LOOM_RING_SUMS
ring_sums: bool = Config(default=True, env_name_default="TORCH_LOOM_RING_SUMS")

# Buffers that only kernels see lie along the dims that cost their kernels least; off: along their innermost dim.
# TORCH_LOOM_LAYOUT_CHOICE
layout_choice: bool = Config(default=True, env_name_default="TORCH_LOOM_LAYOUT_CHOICE")

# Buffers between the kernels of a job stay in LX where that is faster; off: all in a pool of DDR. TORCH_LOOM_RESIDENCY
residency: bool = Config(default=True, env_name_default="TORCH_LOOM_RESIDENCY")

# Processes that compile kernels beside this one; None: one less than the processors, at most 8.
# TORCH_LOOM_COMPILE_WORKERS
compile_workers: int | None = None if (_text := os.environ.get("TORCH_LOOM_COMPILE_WORKERS")) is None else int(_text)

install_config_module(sys.modules[__name__])
