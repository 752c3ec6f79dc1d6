"""Advice in error messages of libraries is not shown to users, because parts of it are unsafe."""

from __future__ import annotations

import pytest

from trainers.contract.rundir import library_error_text, remove_advice

WORDS = {
    "Weights only load failed. Re-running `torch.load` with `weights_only` set to `False` will likely "
    "succeed, but it can result in arbitrary code execution. Only if you got it from a trusted source.": (
        "Weights only load failed."
    ),
    "Object arrays cannot be loaded when allow_pickle=False": "",
    "The repository contains custom code.\nPlease pass the argument `trust_remote_code=True` to allow it.": (
        "The repository contains custom code."
    ),
    "CUDA out of memory. Tried to allocate 2 GiB. If fragmented try PYTORCH_CUDA_ALLOC_CONF=x.": (
        "CUDA out of memory. Tried to allocate 2 GiB."
    ),
    "NCCL error: unhandled (run with NCCL_DEBUG=INFO for details)": "NCCL error: unhandled",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nan illegal access": "an illegal access",
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:1. This is "
    "typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an "
    "error. GLHF! \U0001f3d6": "Connection closed by peer [10.0.0.3]:1.",
    "a plain sentence. And another: with words.": "a plain sentence. And another: with words.",
    "": "",
}


@pytest.mark.parametrize(("text", "left"), WORDS.items())
def test_advice_is_left_out_and_all_else_stays(text: str, left: str) -> None:
    assert remove_advice(text) == left


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("progress"), "'progress' is missing"),
        (KeyError(), "something is missing"),
        (EOFError(), "EOFError"),
        (ValueError("allow_pickle=True"), "ValueError"),
        (ValueError("it is torn"), "it is torn"),
    ],
)
def test_an_error_is_told_in_words(error: Exception, words: str) -> None:
    assert library_error_text(error) == words
