"""Hooks into torch that tell the recorder what a script does.

torch's public hooks where it has them (optimizer steps, gradients of a parameter), and wrappers around these
functions where it has none: `torch.autograd.backward`, `GradScaler.scale` and `.step`, `clip_grad_norm_`, the
iteration of a `DataLoader`, `DistributedSampler`, `Module.train`, the constructors of DDP, DataParallel and
FSDP, `init_process_group`, `torch.save`, and `Tensor.item`. A test pins each of them for the installed torch.

They are installed when the script itself imports torch, so that what it sets up before that has its effect.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from trainers.watch.settings import Settings


class AfterTorch(importlib.abc.MetaPathFinder):
    """Calls a function after the first import of torch, in whichever module it happens."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return torch's own specification, with a loader that calls the function at the end."""
        del path, target
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute, then = spec.loader.exec_module, self._then

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            then()

        spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


def install(settings: Settings) -> Any:
    """Install all hooks; return the recorder. torch is imported."""
    from trainers.watch.recorder import Recorder

    recorder = Recorder(settings.run_dir, settings.code_dir)
    if settings.on_cpu:
        from trainers.watch import on_cpu

        on_cpu.install(recorder, settings.num_ranks)
    os.register_at_fork(after_in_child=recorder.forked)
    _watch_steps(recorder)
    _watch_precision(recorder)
    _watch_data(recorder)
    _watch_modules(recorder)
    _watch_process_group(recorder, settings)
    _watch_files(recorder)
    return recorder


def _wrap(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Any:
    """Replace a function by the one that `make` returns for it; return the original."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))
    return original


def _watch_steps(recorder: Any) -> None:
    """Watch backward passes, optimizer steps, and reads of the loss."""
    import torch
    from torch.optim import optimizer as optimizers

    def around_backward(backward: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if recorder.is_in_backward:  # activation checkpointing runs one inside another
                return backward(*args, **kwargs)
            recorder.begin_backward(args[0] if args else kwargs.get("tensors", ()))
            try:
                return backward(*args, **kwargs)
            finally:
                recorder.end_backward()

        return watched

    def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        recorder.begin_step(optimizer)

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        recorder.end_step(optimizer)

    def around_item(item: Any) -> Any:
        def watched(self: Any) -> Any:
            began = recorder.now()
            value = item(self)
            recorder.note_read(self, value, began)
            return value

        return watched

    _wrap(torch.autograd, "backward", around_backward)
    handles = [
        optimizers.register_optimizer_step_pre_hook(before_step),
        optimizers.register_optimizer_step_post_hook(after_step),
    ]
    item = _wrap(torch.Tensor, "item", around_item)

    def around_compile(compile_function: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if handles:
                # A compiled step function must not trace into the hooks. They are marked only now, because
                # that imports torch._dynamo.
                for handle in handles:
                    handle.remove()
                handles.clear()
                torch.autograd.backward = torch.compiler.disable(torch.autograd.backward)
                optimizers.register_optimizer_step_pre_hook(torch.compiler.disable(before_step))
                optimizers.register_optimizer_step_post_hook(torch.compiler.disable(after_step))
                _wrap(torch.Tensor, "item", lambda _watched: item)
            return compile_function(*args, **kwargs)

        return watched

    _wrap(torch, "compile", around_compile)


def _watch_precision(recorder: Any) -> None:
    """Watch gradient scalers, whose loss is not the one of backward, and the clipping of gradients."""
    import torch
    from torch import nn
    from torch.amp import GradScaler

    def around_scale(scale: Any) -> Any:
        def watched(self: Any, outputs: Any) -> Any:
            recorder.unscaled = outputs
            return scale(self, outputs)

        return watched

    def around_step(step: Any) -> Any:
        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = recorder.num_optimizer_steps
            result = step(self, *args, **kwargs)
            if recorder.num_optimizer_steps == before:
                recorder.skip_step()
            return result

        return watched

    def around_clip(clip: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            if isinstance(norm, torch.Tensor) and not hasattr(norm, "to_local"):
                recorder.norm = norm.detach()
            return norm

        return watched

    _wrap(GradScaler, "scale", around_scale)
    _wrap(GradScaler, "step", around_step)
    _wrap(nn.utils.clip_grad, "clip_grad_norm_", around_clip)
    nn.utils.clip_grad_norm_ = nn.utils.clip_grad.clip_grad_norm_


def _watch_data(recorder: Any) -> None:
    """Watch data loaders and samplers."""
    from torch.utils.data import DataLoader, DistributedSampler
    from torch.utils.data import dataloader as loaders

    def around_next(following: Any) -> Any:
        def watched(self: Any) -> Any:
            began = recorder.begin_fetch()
            batch = following(self)
            recorder.end_fetch(batch, began, self.__dict__.get("_watched_pass"))
            return batch

        return watched

    def around_iterate(iterate: Any) -> Any:
        def watched(self: Any) -> Any:
            iterator = iterate(self)
            iterator._watched_pass = recorder.begin_pass(self)  # noqa: SLF001 - ours
            return iterator

        return watched

    def around_deal(deal: Any) -> Any:
        def watched(self: Any) -> Any:
            indices = list(deal(self))
            recorder.note_indices(self, indices)
            return iter(indices)

        return watched

    def around_set_epoch(set_epoch: Any) -> Any:
        def watched(self: Any, epoch: int) -> None:
            recorder.set_epoch(epoch)
            set_epoch(self, epoch)

        return watched

    _wrap(loaders._BaseDataLoaderIter, "__next__", around_next)  # noqa: SLF001 - no public hook
    _wrap(DataLoader, "__iter__", around_iterate)
    _wrap(DistributedSampler, "__iter__", around_deal)
    _wrap(DistributedSampler, "set_epoch", around_set_epoch)


def _watch_modules(recorder: Any) -> None:
    """Watch the modules that wrap a model, and the change between training and evaluation."""
    from torch import nn
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    def around_train(train: Any) -> Any:
        def watched(self: Any, mode: bool = True) -> Any:
            result = train(self, mode)
            if self is recorder.model or self is getattr(recorder.model, "module", None):
                recorder.set_mode(is_training=mode)
            return result

        return watched

    def note_last_gradient(_parameter: Any) -> None:
        recorder.wait_from = recorder.now()

    def around_ddp(make: Any) -> Any:
        def watched(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            recorder.note_model(self, "ddp", **recorder.place(2))
            trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            if trained:
                # Its gradient is usually the last one: from then on backward waits for the all-reduce alone.
                trained[0].register_post_accumulate_grad_hook(note_last_gradient)

        return watched

    def around_dp(make: Any) -> Any:
        def watched(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            recorder.note_once("data_parallel", **recorder.place(2))

        return watched

    _wrap(nn.Module, "train", around_train)
    _wrap(DistributedDataParallel, "__init__", around_ddp)
    _wrap(DataParallel, "__init__", around_dp)


def _watch_files(recorder: Any) -> None:
    """Watch which files the script writes."""
    import torch

    def around_save(save: Any) -> Any:
        def watched(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike):
                recorder.note_file(os.fspath(f))
            return save(obj, f, *args, **kwargs)

        return watched

    def note_opened(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and (args[1] or "r")[:1] in "wx":
            recorder.note_file(args[0])

    _wrap(torch, "save", around_save)
    # Not a replacement of `open`: as a function in Python it would become a method where a class stores it.
    sys.addaudithook(note_opened)


def _watch_process_group(recorder: Any, settings: Settings) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if not dist.is_available():
        return
    num_begun = 0

    def around_begin(begin: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> None:
            nonlocal num_begun
            names = ("backend", "init_method", "timeout", "world_size", "rank", "store")
            given = dict(zip(names, args, strict=False)) | kwargs
            if settings.on_cpu and "nccl" in str(given.get("backend") or ""):
                given["backend"] = "gloo"
                recorder.replace("init_process_group('nccl') uses gloo", 2)
            if settings.on_cpu and given.get("device_id") is not None:
                given["device_id"] = None
            if settings.store and given.get("store") is None and _is_local(given.get("init_method")):
                _meet_by_file(given, dist.PrefixStore(f"group_{num_begun}", dist.FileStore(settings.store)))
            num_begun += 1
            begin(**given)
            recorder.join_group(dist.get_rank(), dist.get_world_size(), str(dist.get_backend()))

        return watched

    def around_destroy(destroy: Any) -> Any:
        def watched(group: Any = None) -> None:
            destroy(group)
            recorder.is_group_destroyed |= group is None

        return watched

    def around_collective(collective: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            # A mean over the ranks may be taken by it.
            recorder.has_reduced |= not recorder.is_in_backward
            return collective(*args, **kwargs)

        return watched

    around = {"init_process_group": around_begin, "destroy_process_group": around_destroy}
    around |= dict.fromkeys(("all_reduce", "reduce", "all_gather", "gather"), around_collective)
    for name, make in around.items():
        _wrap(distributed_c10d, name, make)
        setattr(dist, name, getattr(distributed_c10d, name))


def _meet_by_file(given: dict[str, Any], store: Any) -> None:
    """Let the ranks meet through a file that only this user can open: no port is opened or needed."""
    rank, world_size = int(given.get("rank", -1)), int(given.get("world_size", -1))
    given["rank"] = rank if rank >= 0 else int(os.environ["RANK"])
    given["world_size"] = world_size if world_size > 0 else int(os.environ["WORLD_SIZE"])
    given["init_method"], given["store"] = None, store
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _is_local(init_method: str | None) -> bool:
    """True if the address by which the ranks meet is one of this machine."""
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        return False
    if init_method is None or init_method.startswith("env://"):
        return os.environ.get("MASTER_ADDR", "localhost") in ("localhost", "127.0.0.1", "::1", _own_name())
    return init_method.startswith(("tcp://localhost:", "tcp://127.0.0.1:", "tcp://[::1]:"))


def _own_name() -> str:
    import socket

    return socket.gethostname()
