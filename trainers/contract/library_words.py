"""What a library says of an error, without its advice: some of that is dangerous, and none is for a page."""

from __future__ import annotations

import re

from trainers.machine.os_errors import explain

# To load files that run code, to trust a stranger's program, to set a variable of a process that has ended.
_ADVICE = re.compile(
    r"weights_only|safe_globals|allow_pickle|trust_remote_code|WEIGHTS_ONLY_LOAD|torch\.serialization"
    r"|TORCH_SHOW_CPP_STACKTRACES|TORCH_USE_CUDA_DSA|TORCH_DISTRIBUTED_DEBUG|NCCL_DEBUG"
    r"|typically caused by|before reporting an error|GLHF|\U0001f3d6"
    r"|CUDA_LAUNCH_BLOCKING|ALLOC_CONF|KMP_DUPLICATE_LIB_OK|from a trusted source|arbitrary code",
    re.IGNORECASE,
)
# Where in a library's own source something was noticed.
_SOURCE = re.compile(r"\[[^\s\[\]]{1,300}\.(?:cc|cpp|h|hpp|cu):\d{1,6}\] ?")
_ASIDE = re.compile(r"(?<!\s)\s*\([^()]*\)")  # without the first part quadratic in the length of a space
_END_OF_SENTENCE = re.compile(r"(?<=[.!?:;])[^\S\n]+")


def without_advice(text: str) -> str:
    """Return a library's text, of one line or many, without the sentences that advise something."""
    kept = []
    for line in _SOURCE.sub("", text).splitlines():
        line = _ASIDE.sub(lambda aside: "" if _ADVICE.search(aside[0]) else aside[0], line)
        sentences = _END_OF_SENTENCE.split(line)
        good = [sentence for sentence in sentences if not _ADVICE.search(sentence)]
        if good or not sentences:
            kept.append(line if len(good) == len(sentences) else " ".join(good))
    return "\n".join(kept)


def in_words(error: BaseException) -> str:
    """Return what an error says, as the end of a sentence; a bare name or nothing at all is none."""
    if isinstance(error, KeyError):
        return f"{str(error.args[0])[:80]!r} is missing" if error.args else "something is missing"
    return without_advice(explain(error)).strip() or type(error).__name__
