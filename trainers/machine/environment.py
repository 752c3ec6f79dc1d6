"""Environment variables and clocks of child processes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping


def _elapsed_s() -> float:
    # CLOCK_BOOTTIME also counts while the machine sleeps, where available.
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock_id)


def hour_and_minute(unix_s: float) -> str:
    """Return a time of day with this machine's time zone: 14:05 CET."""
    return time.strftime("%H:%M %Z", time.localtime(unix_s))


_OFFSET_S = time.time() - _elapsed_s()


def now_unix_s() -> float:
    """Return the seconds since 1970; never decreases within one process."""
    return _OFFSET_S + _elapsed_s()


NOTIFY_URLS = "DDP_NOTIFY_URLS"
PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"})
# Variables for sending notifications: addresses and proxies, which may contain a password.
FOR_NOTIFYING = frozenset({NOTIFY_URLS, *PROXIES})

_NAMES = re.compile(
    r"TOKENS?(?![A-Z])|SECRET|PASSW|PASSPHRASE|CREDENTIAL|WEBHOOK|COOKIE"
    r"|(^|_)(KEYS?|PASS|PWD|PAT|AUTH)(_|$)",
    re.IGNORECASE,
)
_NO_SECRETS = frozenset({"PWD"})
_ADDRESS_WITH_USER = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s@]*@", re.IGNORECASE)


def for_a_child(
    more: Mapping[str, str] | None = None,
    *,
    keep: Collection[str] = (),
    without: re.Pattern[str] | None = None,
) -> dict[str, str]:
    """Return the environment for a child process: this process's without secrets, then `more`.

    A variable is a secret if its name suggests it (token, key, password, ...) or its value is an address with
    a user.

    Args:
        keep: secrets that the process needs.
        without: matches prefixes of names that the process must not inherit, because they mean something else
            to it.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if (name in keep or not _is_secret(name, value)) and not (without and without.match(name))
    }
    return variables | dict(more or {})


def _is_secret(name: str, value: str) -> bool:
    if name in _NO_SECRETS:
        return False
    return name == NOTIFY_URLS or bool(_NAMES.search(name) or _ADDRESS_WITH_USER.search(value))
