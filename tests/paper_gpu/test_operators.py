"""Operators and modules compute the same on paper GPUs as on the CPU, and fail as on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.paper_gpu.conftest import OnGpus


@pytest.fixture(autouse=True)
def _on_paper(build: Path) -> None:
    torch.manual_seed(0)


class Recurrent(nn.Module):
    """Returns the outputs and the last state, whose gradient also flows through the cell."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = self.layer(x)
        last = state[1] if isinstance(state, tuple) else state
        return torch.cat([outputs.sum(1), last.sum(0)], dim=-1)


class Attention(nn.Module):
    def __init__(self, *, is_causal: bool = False, is_masked: bool = False) -> None:
        super().__init__()
        self.is_causal, self.is_masked = is_causal, is_masked

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (3, 16)).unflatten(0, (2, 2)).unbind(-2)
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=x.device).tril()
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.is_causal, attn_mask=mask if self.is_masked else None
        )


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.LayerNorm(30), nn.Linear(30, 5)),
        (7, 20),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=8), nn.AdaptiveAvgPool2d(1),
        ),
        (4, 3, 16, 16),
    ),
    "transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8)),
        (4, 3, 8, 8),
    ),
    "convolution of one dimension": (lambda: nn.Conv1d(3, 4, 3, dilation=2), (2, 3, 20)),
    "causal attention": (lambda: Attention(is_causal=True), (4, 12, 48)),
    "masked attention": (lambda: Attention(is_masked=True), (4, 12, 48)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        (3, 10, 16),
    ),
    "GRU": (lambda: Recurrent(nn.GRU(6, 5, batch_first=True)), (4, 7, 6)),
    "GRU without bias": (lambda: Recurrent(nn.GRU(6, 5, bias=False, batch_first=True)), (4, 7, 6)),
    "LSTM of two layers": (
        lambda: Recurrent(nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True)),
        (4, 7, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_module_and_its_gradients_are_those_of_the_cpu(name: str) -> None:
    make, shape = MODULES[name]
    on_cpu = make()
    on_gpu = copy.deepcopy(on_cpu).cuda()
    values = torch.randn(shape)
    inputs = [values.clone().requires_grad_(), values.cuda().requires_grad_()]
    outputs = [on_cpu(inputs[0]), on_gpu(inputs[1])]
    for output in outputs:
        output.square().sum().backward()
    pairs = zip([*on_cpu.parameters(), inputs[0]], [*on_gpu.parameters(), inputs[1]], strict=True)
    torch.testing.assert_close(outputs[1].cpu(), outputs[0], atol=1e-4, rtol=1e-3)
    for expected, found in pairs:
        torch.testing.assert_close(found.grad.cpu(), expected.grad, atol=1e-3, rtol=1e-3)


OPERATORS: dict[str, Callable[[Tensor], object]] = {
    "remainder of an int": lambda x: x % 3,
    "int by float": lambda x: (x * 2.5).sum(),
    "conversion": lambda x: x.float().mean(),
    "boolean index": lambda x: x[x > 5],
    "boolean assignment": lambda x: x.clone().masked_fill_(x > 5, 1).index_put_((x > 7,), x.new_tensor(3)),
    "nonzero": lambda x: torch.nonzero(x > 7),
    "unique": lambda x: (x % 4).unique(),
    "equal": lambda x: torch.equal(x, x + 0),
    "bincount": lambda x: torch.bincount(x % 2),
    "transposed copy": lambda x: x.reshape(3, 4).t().contiguous(),
    "sort": lambda x: (x * 7 % 12).sort().indices,
    "cat": lambda x: torch.cat([x, x.flip(0)]),
    "foreach": lambda x: torch._foreach_norm([x.float(), x.float() * 2])[1],
    "inverse": lambda x: torch.linalg.inv(torch.diag(x[1:5].float())),
    "fft": lambda x: torch.fft.fft(x.float()).real,
    "topk": lambda x: x.topk(3).values,
    "scatter": lambda x: torch.zeros_like(x).scatter_add_(0, x % 3, x),
    "kernel compiled by NVRTC": lambda x: torch.special.entr(x.double()),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_gives_what_it_gives_on_the_cpu(name: str) -> None:
    values = torch.arange(12)
    expected, found = OPERATORS[name](values), OPERATORS[name](values.cuda())
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor) and found.is_cuda
        torch.testing.assert_close(found.cpu(), expected)
    else:
        assert found == expected


def test_memory_that_deterministic_algorithms_fill_is_not_filled_after_its_result() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        counts = torch.bincount(torch.tensor([2, 0, 2], device="cuda"))
        assert counts.tolist() == [1, 0, 2]
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_with_a_scaler_trains(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Conv1d(1, 4, 1), nn.Flatten(), nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler(enabled=dtype == torch.float16)
    inputs = torch.randn(32, 1, 4, device="cuda")
    losses = []
    for _ in range(60):
        with torch.autocast("cuda", dtype=dtype):
            loss = functional.mse_loss(net(inputs), inputs.squeeze(1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_the_generator_of_the_gpu_gives_the_same_numbers_from_the_same_state() -> None:
    def draw() -> list[Tensor]:
        ones = torch.ones(1000, device="cuda")
        return [
            torch.randn(9, device="cuda"),
            torch.randperm(9, device="cuda"),
            functional.dropout(ones, 0.3),
        ]

    saved = torch.cuda.get_rng_state()
    on_host = torch.get_rng_state()
    first, second = draw(), draw()
    torch.cuda.set_rng_state(saved)
    assert all(map(torch.equal, draw(), first))
    assert not torch.equal(first[0], second[0])
    assert 0.5 < first[2].count_nonzero().item() / 1000 < 0.9
    assert torch.equal(torch.get_rng_state(), on_host), "the CPU's generator is left alone"


def test_the_host_does_not_wait_for_kernels_and_an_event_does() -> None:
    done = torch.cuda.Event()
    torch.cuda._sleep(10**9)  # one second
    result = torch.ones(4, device="cuda") * 2
    done.record()
    assert not done.query()
    done.synchronize()
    assert done.query() and result.tolist() == [2] * 4


def test_a_stream_reads_old_values_unless_it_waits_for_the_writer() -> None:
    """A missing wait_stream causes the same error as on a GPU."""
    writer, values = torch.cuda.Stream(), torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(writer):
        torch.cuda._sleep(5 * 10**8)
        values.fill_(1)
    too_early = values.sum()
    torch.cuda.current_stream().wait_stream(writer)
    assert (too_early.item(), values.sum().item()) == (0, 4)


def test_cuda_graphs_are_refused_and_training_goes_on() -> None:
    graph = torch.cuda.CUDAGraph()
    values = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="operation not supported"), torch.cuda.graph(graph):
        values.add_(1)
    assert (values + 1).tolist() == [2] * 3


def test_memory_runs_out_as_torch_says_it() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(2**45, device="cuda")
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_an_index_out_of_bounds_is_an_assert_of_the_device(on_gpus: OnGpus) -> None:
    code = """
import json, torch
zeros = torch.zeros(3, device="cuda")
try:
    zeros[torch.full((1,), 7, device="cuda")].sum().item()
except RuntimeError as error:
    first = str(error).splitlines()[0]
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    second = str(error).splitlines()[0]
print(json.dumps([first, second]))
"""
    assert on_gpus("T4", code) == ["CUDA error: device-side assert triggered"] * 2


def test_a_compiled_function_computes_and_says_how(on_gpus: OnGpus, state: Path) -> None:
    code = """
import torch
compiled = torch.compile(lambda x: (x + x.sin().abs() * 0).sum())
print(compiled(torch.ones(8, device="cuda")).item())
"""
    assert on_gpus("T4", code) == 8.0
    assert "executes them operator by operator (aot_eager)" in (state.parent / "stderr.txt").read_text()


def test_an_operator_without_a_cpu_kernel_is_named() -> None:
    values = torch.ones(1, 4, 2, 8, device="cuda")
    with pytest.raises(NotImplementedError, match="cannot compute aten::_efficient_attention_forward"):
        torch.ops.aten._efficient_attention_forward(
            values, values, values, None, None, None, None, None, 0.0, 0
        )
