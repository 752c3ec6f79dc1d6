"""Login: limits, checks and page."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from typing import Any
from weakref import WeakValueDictionary

from ddp_gui.auth import account_file
from ddp_gui.auth.account_file import Account, AccountFile
from ddp_gui.auth.rights import Person
from ddp_gui.auth.sessions import Sessions, sessions_path
from ddp_gui.http import shell
from ddp_gui.http.front import Refused, RequestCounter, network_of

# Per name and address or device.
FREE_FAILURES = 5
# Per name from all addresses together: an attack may use many addresses.
FREE_FAILURES_OF_A_NAME = 50
LONGEST_WAIT_S = 60.0
FORGOTTEN_AFTER_S = 15 * 60.0
MAX_REMEMBERED = 10_000


class LoginError(Exception):
    """A refused login; the message is for the user."""

    def __init__(self, message: str, *, status: int, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass
class _Failures:
    count: int = 0
    newest_s: float = 0.0
    free_again_s: float = 0.0


Key = tuple[str, ...]


class Failures:
    """Failed attempts by key; bounded in number and age."""

    def __init__(self, free: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = free
        self._clock = clock
        self._found: OrderedDict[Key, _Failures] = OrderedDict()

    def wait_s(self, key: Key) -> float:
        """Return the seconds until the next attempt is allowed."""
        self._forget_old()
        found = self._found.get(key)
        return max(0.0, found.free_again_s - self._clock()) if found else 0.0

    def add(self, key: Key) -> None:
        """Count a failure."""
        found = self._found.setdefault(key, _Failures())
        self._found.move_to_end(key)
        found.count += 1
        found.newest_s = now = self._clock()
        beyond = found.count - self._free
        if beyond >= 0:
            found.free_again_s = now + min(LONGEST_WAIT_S, 2.0 ** min(beyond, 10))
        while len(self._found) > MAX_REMEMBERED:
            self._found.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Clear the failures of this key."""
        self._found.pop(key, None)

    def _forget_old(self) -> None:
        oldest_s = self._clock() - FORGOTTEN_AFTER_S
        while self._found and next(iter(self._found.values())).newest_s < oldest_s:
            self._found.popitem(last=False)


class LoginLimits:
    """Limits per name and source, and per name for all unknown sources together; thread-safe.

    There is no limit per address: one phone's failures must not lock out a class behind the same address. A
    source is an address, or a device on which the account has logged in before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._pairs = Failures(FREE_FAILURES, clock)
        self._names = Failures(FREE_FAILURES_OF_A_NAME, clock)

    def check(self, name: str, source: str, *, is_known: bool = False) -> None:
        """Return if a password may be tried now.

        Args:
            is_known: the source is a known device, so that failures elsewhere do not count.
        Raises:
            LoginError: if the client must wait.
        """
        with self._lock:
            wait_s = self._pairs.wait_s((name, source))
            if not is_known:
                wait_s = max(wait_s, self._names.wait_s((name,)))
        if wait_s > 0:
            whole_s = max(1, math.ceil(wait_s))
            seconds = "1 second" if whole_s == 1 else f"{whole_s} seconds"
            message = f"Too many failed attempts. Try again in {seconds}."
            raise LoginError(message, status=429, retry_after_s=whole_s)

    def count(self, name: str, source: str, *, is_right: bool, is_known: bool = False) -> None:
        """Count an attempt that was checked; a correct password clears the failures of its source."""
        with self._lock:
            if is_right:
                self._pairs.forget((name, source))
                return
            self._pairs.add((name, source))
            if not is_known:
                self._names.add((name,))


TITLE = "Log in · Rankscope"
# The only files served without a session, in addition to the login page.
FILES = (
    "live/assets/css/shared/colours.css",
    "live/assets/css/auth/login.css",
    "live/assets/icons/favicon.svg",
    "live/assets/js/first.js",
    shell.TYPEFACE,
)


def render_login_page(wished: str, name: str = "", problem: str = "") -> str:
    """Return the login page as HTML.

    Args:
        wished: the address to open after the login.
        name: the name entered before.
        problem: why the last attempt failed.
    """
    alert = f'<p class="ddp-login-problem" role="alert" id="problem">{escape(problem)}</p>' if problem else ""
    described = ' aria-describedby="problem" aria-invalid="true"' if problem else ""
    # If a name is filled in, the password gets the focus.
    focus_name, focus_password = ("", " autofocus") if name else (" autofocus", "")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<link rel="stylesheet" href="./{FILES[0]}">
<link rel="stylesheet" href="./{FILES[1]}">
<link rel="icon" href="./{FILES[2]}">
<script src="./{FILES[3]}"></script>
</head>
<body class="ddp-login-body">
<main class="ddp-login">
<p class="ddp-login-brand">Rankscope</p>
<h1>Log in</h1>
<p class="ddp-login-words">Train networks on several GPUs at once, and watch it happen.</p>
{alert}
<form method="post" action="./login">
<input type="hidden" name="next" value="{escape(wished, quote=True)}">
<label for="username">Name</label>
<input id="username" name="username" value="{escape(name, quote=True)}"
 autocomplete="username" autocapitalize="none" spellcheck="false" maxlength="80"
 required{focus_name}{described}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" maxlength="200"
 required{focus_password}{described}>
<button type="submit">Log in</button>
</form>
<p class="ddp-login-words">No account, or forgot your password? Ask the person who set up this page.</p>
</main>
</body>
</html>
"""


# Each check takes 32 MiB and a core: training needs the remaining ones.
AT_ONCE = 2
# Of one name from one source, or of all names without an account from one source. A class may log in with one
# account at the same time.
MAX_WAITING = 60
# Known devices have their own thread, which attempts from unknown sources cannot occupy.
MAX_WAITING_OF_A_NAME = 5
DEVICE_FOR_S = 180 * 24 * 3600


class Login:
    """The accounts, the sessions and the limits of one page."""

    def __init__(
        self, accounts: AccountFile, cookie_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cookie_name = cookie_name
        self.device_cookie_name = f"{cookie_name}_device"
        self._accounts = accounts
        self._sessions = Sessions(accounts, sessions_path(accounts))
        self._limits = LoginLimits(clock)
        self._strangers = _Checks(AT_ONCE, MAX_WAITING)
        self._known = _Checks(1, MAX_WAITING_OF_A_NAME)

    async def begin(self, name: str, password: str, address: str, device: str | None = None) -> str:
        """Return the token of a new session for this name and password.

        Args:
            device: the browser's device token. If this account has logged in on it before, only failures of
                that browser count, so that no other client can lock it out.
        Raises:
            LoginError: if name or password is wrong, or the client must wait.
        """
        small = name.strip().lower()[:80]
        account = self._accounts.find(small)
        is_known = account is not None and _is_device_of(account, device)
        source, checks = (
            (f"device {device}", self._known) if is_known else (network_of(address), self._strangers)
        )
        line = small if is_known else source if account is None else f"{source} {small}"
        # Checked before taking a place in the queue, so that a blocked name does not delay other users.
        self._limits.check(small, source, is_known=is_known)
        is_right = await checks.run(line, self._check, small, source, password, account, is_known)
        if account is None or not is_right:
            raise LoginError("The name or the password is wrong.", status=401)
        return self._sessions.begin(account)

    def device_token(self, name: str, device: str | None) -> str:
        """Return the device token of a browser after its login: its current one, or a new one.

        It is signed with the account's mark: a new password or role makes all devices unknown.
        """
        account = self._accounts.find(name.strip().lower()[:80])
        if account is None:
            return ""
        if device is not None and _is_device_of(account, device):
            return device
        return _device_token(account, secrets.token_hex(16))

    def person(self, token: str | None, *, is_seen: bool = True) -> Person | None:
        """Return the user of this token, or None if the session has ended."""
        return self._sessions.person(token, is_seen=is_seen) if token else None

    def end(self, token: str | None) -> None:
        """End the session of this token (logout)."""
        if token:
            self._sessions.end(token)

    def _check(self, name: str, source: str, password: str, account: Account | None, is_known: bool) -> bool:
        """Return True if the password is right; runs in a thread."""
        self._limits.check(name, source, is_known=is_known)
        # An unknown name takes the same time, so that timing does not reveal which accounts exist.
        is_right = account_file.fits_password(
            password, account_file.NOBODYS if account is None else account.password
        )
        self._limits.count(name, source, is_right=is_right and account is not None, is_known=is_known)
        return is_right


class _Checks:
    """Threads that check passwords, one of each line at a time.

    Attempts with wrong names thus never delay an entire class, and a running check, which has neither failed
    nor succeeded yet, is never followed by the next guess.
    """

    def __init__(self, at_once: int, most_waiting: int) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="password")
        self._waiting = RequestCounter(most_waiting)
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, line: str, check: Callable[..., bool], *values: Any) -> bool:
        """Return the result of a check.

        Raises:
            LoginError: if too many checks of this line wait.
        """
        try:
            with self._waiting.admit(line):
                async with self._lines.setdefault(line, asyncio.Lock()):
                    return await asyncio.get_running_loop().run_in_executor(self._threads, check, *values)
        except Refused as error:
            raise LoginError(
                "Many people are logging in at this moment. Try again in a few seconds.", status=503
            ) from error


def _device_token(account: Account, number: str) -> str:
    signature = hmac.new(account.mark.encode(), f"device {number}".encode(), "sha256").hexdigest()
    return f"{number}.{signature}"


def _is_device_of(account: Account, device: str | None) -> bool:
    if device is None:
        return False
    expected = _device_token(account, device.partition(".")[0])
    return hmac.compare_digest(device.encode(), expected.encode())
