"""One thread for torch: more do not speed up small tensors and slow down other jobs on the machine."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Run torch on one thread in all unit tests."""
    torch.set_num_threads(1)
