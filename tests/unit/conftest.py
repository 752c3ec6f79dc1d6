"""One thread for torch: small tensors gain nothing from more, and other jobs on the machine lose."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Compute on one thread in all unit tests."""
    torch.set_num_threads(1)
