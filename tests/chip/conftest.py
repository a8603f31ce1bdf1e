"""Chip tests share the hand-written programs of the codec tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "spyrecode"))
