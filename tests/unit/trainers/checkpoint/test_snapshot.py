"""What a step changes before it is interrupted is put back for the save."""

from __future__ import annotations

import random

import torch
from torch import nn

from trainers.checkpoint.snapshot import StepStart

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())


def test_what_a_forward_pass_changes_is_put_back_for_a_while() -> None:
    subject = network()
    start = StepStart(subject, CPU)
    assert not start.is_stored
    start.store()
    statistics = [buffer.clone() for buffer in subject.buffers()]
    begins_with = (subject(torch.ones(3, 4)), random.random())
    moved = [buffer.clone() for buffer in subject.buffers()]
    assert not torch.equal(statistics[0], moved[0])
    with start.restore_temporarily():
        for buffer, before in zip(subject.buffers(), statistics, strict=True):
            assert torch.equal(buffer, before)
        assert torch.equal(subject(torch.ones(3, 4)), begins_with[0]) and random.random() == begins_with[1]
    for buffer, after in zip(subject.buffers(), moved, strict=True):
        assert torch.equal(buffer, after)
    goes_on_with = torch.rand(3)
    start.store()
    start.forget()
    assert not start.is_stored
    torch.manual_seed(5)
    again = network()
    again(torch.ones(3, 4))
    assert torch.equal(torch.rand(3), goes_on_with), "as if nothing had been put back"
