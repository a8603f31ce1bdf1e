"""How fast a language model would be on the chip, from its configuration alone: no weights, no data.

The model is built on the meta device, compiled for ``spyre`` with device memory that nobody touches, and its launches
are timed by the chip's clock. See ``loom estimate`` and docs/estimate.md.
"""

from torch_loom.integrations.huggingface.estimate.configs import EstimateError, bundled, load_config
from torch_loom.integrations.huggingface.estimate.footprint import Footprint, TooLarge
from torch_loom.integrations.huggingface.estimate.result import Estimate, Step
from torch_loom.integrations.huggingface.estimate.run import estimate

__all__ = ["Estimate", "EstimateError", "Footprint", "Step", "TooLarge", "bundled", "estimate", "load_config"]
