"""These tests run PyTorch. Where it is not installed they are skipped, unless KVCALC_TORCH says that they must run.

One thread is enough for tiny tensors, and does not wait for a second one on a busy machine.
"""

import os

import pytest

if os.environ.get("KVCALC_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

torch.set_num_threads(1)

# Triton's kernels run on the CPU, one program after another.
os.environ["TRITON_INTERPRET"] = "1"
