"""How this process deals with memory it no longer needs: on CPU ranks it stays at hand for the next step.

Activations are freed in every step and wanted again in the next. The C library gives what lies at the end of
its heap back to the system meanwhile, and the system hands it out again page by page, each of them emptied.
"""

from __future__ import annotations

import ctypes

# The names and numbers of glibc's malloc.h; see `man 3 mallopt`.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = -1
# The most glibc takes: what is larger comes from the system each time, and goes back to it.
_LARGEST_KEPT_BYTES = 32 * 2**20


def keep_what_is_freed() -> None:
    """Let this process keep up to the most memory it ever needed; nothing happens without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
