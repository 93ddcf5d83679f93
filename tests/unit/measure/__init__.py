"""These tests run PyTorch. Where it is not installed they are skipped, unless KVCALC_TORCH says that they must run."""

import os

import pytest

if not os.environ.get("KVCALC_TORCH"):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")
