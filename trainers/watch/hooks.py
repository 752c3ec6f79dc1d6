"""Hooks into torch that report the steps of a script to the recorder.

Uses torch's public hooks where they exist (optimizer steps, gradients of a parameter), and otherwise wraps
these functions: `torch.autograd.backward` and `.grad`, `GradScaler.scale` and `.step`, `clip_grad_norm_`,
`zero_grad`, the iteration of a `DataLoader`, `DistributedSampler`, `Module.train`, the constructors of DDP,
DataParallel and `Join`, `init_process_group` and `destroy_process_group`, reductions, `send` and `recv` with
their variants, `torch.save`, `torch.compile`, `Tensor.item`, `.tolist`, `.cpu` and `__float__`. Tests check
these functions in the installed torch. The hooks are installed when the script imports torch, so that the
script's settings before this import take effect.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainers.watch.guard import hook
from trainers.watch.settings import Settings


def install(settings: Settings) -> Any:
    """Install all hooks; return the recorder. Call it after torch was imported."""
    from trainers.watch.recorder import Recorder

    recorder = Recorder(settings.run_dir, settings.code_dir, settings.resume_step)
    if settings.on_cpu:
        from trainers.watch.on_cpu import replace_gpus

        replace_gpus(recorder, settings.num_ranks)
    os.register_at_fork(after_in_child=recorder.reset_after_fork)
    _watch_steps(recorder)
    _watch_data(recorder)
    _watch_modules_and_files(recorder)
    _watch_process_group(recorder, settings)
    return recorder


def wrap(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Any:
    """Replace a function with `make(function)`; return the original."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))
    return original


def before(owner: Any, name: str, note: Callable[..., Any]) -> Any:
    """Call `note` with the arguments before each call of a function."""

    def make(original: Any) -> Any:
        safe = hook(note)

        def watched(*args: Any, **kwargs: Any) -> Any:
            safe(*args, **kwargs)
            return original(*args, **kwargs)

        return watched

    return wrap(owner, name, make)


def after(owner: Any, name: str, note: Callable[..., Any]) -> Any:
    """Call `note` with the result and the arguments after each call of a function."""

    def make(original: Any) -> Any:
        safe = hook(note)

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            safe(result, *args, **kwargs)
            return result

        return watched

    return wrap(owner, name, make)


def saved_file(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the file argument of a call of `torch.save(obj, f)`."""
    return args[1] if len(args) > 1 else kwargs.get("f")


def _watch_steps(recorder: Any) -> None:
    """Watch backward passes, optimizer steps, gradient scalers, and reads of the loss."""
    import torch
    from torch import nn
    from torch.amp import GradScaler
    from torch.optim import optimizer as optimizers

    def around_scaler_step(step: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            before = recorder.num_optimizer_steps
            result = step(*args, **kwargs)
            if recorder.num_optimizer_steps == before:
                recorder.skip_step()
            return result

        return watched

    def note_compiling(*_args: Any, **_kwargs: Any) -> None:
        """Keep torch.compile from tracing into the hooks; called late, because it imports dynamo."""
        if handles:
            for handle in handles:
                handle.remove()
            handles.clear()
            torch.autograd.backward = torch.compiler.disable(torch.autograd.backward)
            optimizers.register_optimizer_step_pre_hook(torch.compiler.disable(recorder.begin_step))
            optimizers.register_optimizer_step_post_hook(torch.compiler.disable(recorder.end_step))
            for owner, name, original in originals:
                setattr(owner, name, original)

    def around_grad(grad: Any) -> Any:
        watched_grad = _around_backward(recorder, grad, by_grad=True)

        def watched(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            inputs = inputs if isinstance(inputs, (torch.Tensor, Sequence)) else tuple(inputs)
            first = inputs[0] if isinstance(inputs, Sequence) and inputs else inputs
            # A gradient with a graph (`create_graph`) is part of a loss, as in a gradient penalty.
            is_part = args[2:3] == (True,) or kwargs.get("create_graph", False)
            chosen_grad = watched_grad if isinstance(first, nn.Parameter) and not is_part else grad
            return chosen_grad(outputs, inputs, *args, **kwargs)

        return watched

    handles = [
        optimizers.register_optimizer_step_pre_hook(recorder.begin_step),
        optimizers.register_optimizer_step_post_hook(recorder.end_step),
    ]
    wrap(torch.autograd, "backward", functools.partial(_around_backward, recorder))
    originals: list[tuple[Any, str, Any]] = [
        (torch.autograd, "grad", wrap(torch.autograd, "grad", around_grad))
    ]
    kinds = (optimizers.Optimizer, nn.Module)
    originals += [(kind, "zero_grad", before(kind, "zero_grad", recorder.drop_losses)) for kind in kinds]
    wrap(GradScaler, "step", around_scaler_step)
    before(GradScaler, "scale", lambda _self, outputs: setattr(recorder, "unscaled", outputs))
    before(torch, "compile", note_compiling)
    after(nn.utils.clip_grad, "clip_grad_norm_", lambda norm, *_args, **_kwargs: recorder.note_norm(norm))
    nn.utils.clip_grad_norm_ = nn.utils.clip_grad.clip_grad_norm_
    originals += [(torch.Tensor, name, read) for name, read in _watch_reads(recorder).items()]


def _around_backward(recorder: Any, backward: Any, *, by_grad: bool = False) -> Any:
    def watched(*args: Any, **kwargs: Any) -> Any:
        if recorder.is_in_backward:  # activation checkpointing runs a backward pass inside another
            return backward(*args, **kwargs)
        recorder.begin_backward(args[0] if args else kwargs.get("tensors", ()), by_grad=by_grad)
        try:
            return backward(*args, **kwargs)
        finally:
            recorder.end_backward()

    return watched


def _watch_reads(recorder: Any) -> dict[str, Any]:
    """Watch the functions that copy a tensor's values to the host; return the originals by name."""
    from torch import Tensor

    from trainers.watch.recorder import address_of

    def around_read(read: Any) -> Any:
        def watched(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # This check must be fast: optimizers on CPUs read a number for each parameter.
            if not recorder.read_keys or (recorder.is_in_step and not recorder.num_backwards_in_step):
                return read(tensor, *args, **kwargs)
            started_at = time.perf_counter()
            result = read(tensor, *args, **kwargs)
            try:
                may_be_loss = tensor.grad_fn is not None or address_of(tensor) in recorder.read_keys
            except RuntimeError:  # a view whose base was changed in place has no grad_fn
                return result
            if may_be_loss:
                recorder.note_read(result, tensor, started_at)
            return result

        return watched

    reads = {name: getattr(Tensor, name) for name in ("item", "tolist", "cpu", "__float__")}
    # Detach the tensor: otherwise torch warns about `float(loss)` with the line of this hook.
    wrap(Tensor, "__float__", lambda read: lambda tensor: read(tensor.detach()))
    for name in reads:
        wrap(Tensor, name, around_read)
    return reads


def _watch_data(recorder: Any) -> None:
    """Watch data loaders and samplers."""
    from torch.utils.data import DataLoader, DistributedSampler
    from torch.utils.data import dataloader as loaders

    def around_next(next_batch: Any) -> Any:
        def watched(self: Any) -> Any:
            started_at = recorder.begin_fetch()
            try:
                batch = next_batch(self)
            except StopIteration:
                recorder.end_pass()
                raise
            recorder.end_fetch(batch, started_at, self.__dict__.get("_watched_pass"))
            return batch

        return watched

    def around_iter(make_iterator: Any) -> Any:
        def watched(loader: Any) -> Any:
            data_pass = recorder.begin_pass(loader)
            iterator = make_iterator(loader)
            iterator._watched_pass = data_pass  # noqa: SLF001 - ours
            recorder.set_iterator(iterator)
            return iterator

        return watched

    def around_sampling(draw_indices: Any) -> Any:
        def watched(sampler: Any) -> Any:
            indices = list(draw_indices(sampler))
            recorder.note_indices(sampler, indices)
            return iter(indices)

        return watched

    wrap(loaders._BaseDataLoaderIter, "__next__", around_next)  # noqa: SLF001 - no public hook
    wrap(DataLoader, "__iter__", around_iter)
    wrap(DistributedSampler, "__iter__", around_sampling)
    before(DistributedSampler, "set_epoch", lambda _self, epoch: recorder.set_epoch(epoch))


def _watch_modules_and_files(recorder: Any) -> None:
    """Watch the modules that wrap a model, its mode, and written files."""
    import torch
    from torch import nn
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    def note_mode(module: Any, _self: Any, mode: bool = True) -> None:
        if module is recorder.model or module is getattr(recorder.model, "module", None):
            recorder.set_mode(is_training=mode)

    def note_ddp(_none: None, model: Any, *_args: Any, **_kwargs: Any) -> None:
        recorder.note_model(model, "ddp", **recorder.location())
        trained = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        if trained:
            # The first parameter's gradient is usually the last: after it, backward only waits for the
            # all-reduce.
            trained[0].register_post_accumulate_grad_hook(recorder.note_last_gradient)

    def note_data_parallel(*_args: Any, **_kwargs: Any) -> None:
        recorder.note("data_parallel", **recorder.location())

    def note_opened(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and (args[1] or "r")[:1] in "wx":
            recorder.note_file(args[0])

    after(nn.Module, "train", note_mode)
    after(DistributedDataParallel, "__init__", note_ddp)
    before(DataParallel, "__init__", note_data_parallel)
    before(torch, "save", lambda *args, **kwargs: recorder.note_file(saved_file(args, kwargs)))
    # An audit hook, because a replacement of `open` would become a method in a class that stores it.
    sys.addaudithook(note_opened)


def _watch_process_group(recorder: Any, settings: Settings) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if not dist.is_available():
        return
    num_groups = 0

    def around_init(init_group: Any) -> Any:
        def watched(*args: Any, **kwargs: Any) -> None:
            nonlocal num_groups
            names = ("backend", "init_method", "timeout", "world_size", "rank", "store")
            arguments = dict(zip(names, args, strict=False)) | kwargs
            if settings.on_cpu and "nccl" in str(arguments.get("backend") or ""):
                arguments["backend"] = "gloo"
                recorder.replace("init_process_group('nccl') uses gloo", 2)
            if settings.on_cpu and arguments.get("device_id") is not None:
                arguments["device_id"] = None
            is_local = arguments.get("store") is None and _is_local(arguments.get("init_method"))
            if is_local and settings.master_address is not None:
                os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = settings.master_address
                _set_rendezvous(arguments, None)
            elif is_local and settings.store:
                # A file that only this user can open, instead of a network port.
                _set_rendezvous(
                    arguments, dist.PrefixStore(f"group_{num_groups}", dist.FileStore(settings.store))
                )
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            num_groups += 1
            init_group(**arguments)
            by_script = recorder.is_called_by_script(2)
            backend = str(dist.get_backend())
            recorder.join_group(dist.get_rank(), dist.get_world_size(), backend, by_script=by_script)

        return watched

    from torch.distributed.algorithms.join import Join

    before(Join, "__init__", lambda *_args, **_kwargs: recorder.note("joins"))
    wrap(distributed_c10d, "init_process_group", around_init)
    before(distributed_c10d, "destroy_process_group", recorder.note_group_destroyed)
    reductions = ("all_reduce", "reduce", "all_gather", "gather")
    messages = ("send", "isend", "recv", "irecv", "batch_isend_irecv", "all_to_all", "all_to_all_single")
    for names, note in ((reductions, recorder.note_collective), (messages, recorder.note_message)):
        for name in names:
            before(distributed_c10d, name, note)
    for name in ("init_process_group", "destroy_process_group", *reductions, *messages):
        setattr(dist, name, getattr(distributed_c10d, name))


def _set_rendezvous(arguments: dict[str, Any], store: Any) -> None:
    """Replace the script's rendezvous address by a store, or by the address from torchrun."""
    rank, world_size = int(arguments.get("rank", -1)), int(arguments.get("world_size", -1))
    arguments["rank"] = rank if rank >= 0 else int(os.environ["RANK"])
    arguments["world_size"] = world_size if world_size > 0 else int(os.environ["WORLD_SIZE"])
    arguments["init_method"], arguments["store"] = None, store


def _is_local(init_method: str | None) -> bool:
    """True if a rendezvous address belongs to this machine."""
    if init_method is None or init_method.startswith("env://"):
        return os.environ.get("MASTER_ADDR", "localhost") in ("localhost", "127.0.0.1", "::1", _host_name())
    return init_method.startswith(("tcp://localhost:", "tcp://127.0.0.1:", "tcp://[::1]:"))


def _host_name() -> str:
    import socket

    return socket.gethostname()
