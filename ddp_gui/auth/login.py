"""Login: limits, checks and page."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from weakref import WeakValueDictionary

from ddp_gui.auth import account_file
from ddp_gui.auth.account_file import Account, AccountFile
from ddp_gui.auth.rights import Person
from ddp_gui.auth.sessions import Sessions, sessions_path
from ddp_gui.http import shell
from ddp_gui.http.front import network_of

# Free attempts per name and address or device.
FREE_FAILURES = 5
# Free attempts per name from all addresses together, because an attack may use many addresses.
FREE_FAILURES_PER_NAME = 50
LONGEST_WAIT_S = 60.0
FORGOTTEN_AFTER_S = 15 * 60.0
MAX_REMEMBERED = 10_000


class TooManyTriesError(Exception):
    """Too many failed attempts; `wait_s` is the time until the next one is allowed."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"wait {wait_s:.0f} s")
        self.wait_s = wait_s


@dataclass
class _Failures:
    count: int = 0
    newest_s: float = 0.0
    free_again_s: float = 0.0


Key = tuple[str, ...]


class Failures:
    """Failed attempts by key; bounded in number and age."""

    def __init__(self, num_free: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_free = num_free
        self._clock = clock
        self._by_key: OrderedDict[Key, _Failures] = OrderedDict()

    def wait_s(self, key: Key) -> float:
        """Return the seconds until the next attempt is allowed."""
        self._forget_old()
        failures = self._by_key.get(key)
        return max(0.0, failures.free_again_s - self._clock()) if failures else 0.0

    def add(self, key: Key) -> None:
        """Count a failure."""
        failures = self._by_key.setdefault(key, _Failures())
        self._by_key.move_to_end(key)
        failures.count += 1
        failures.newest_s = now = self._clock()
        excess = failures.count - self._num_free
        if excess >= 0:
            failures.free_again_s = now + min(LONGEST_WAIT_S, 2.0 ** min(excess, 10))
        while len(self._by_key) > MAX_REMEMBERED:
            self._by_key.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Clear the failures of this key."""
        self._by_key.pop(key, None)

    def _forget_old(self) -> None:
        oldest_s = self._clock() - FORGOTTEN_AFTER_S
        while self._by_key and next(iter(self._by_key.values())).newest_s < oldest_s:
            self._by_key.popitem(last=False)


class LoginLimits:
    """Limits per name and source, and per name for all unknown sources together; thread-safe.

    A source is an address, or a device on which the account has logged in before. An address alone has no
    limit, so that one phone's failures cannot lock out a class behind the same address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._pairs = Failures(FREE_FAILURES, clock)
        self._names = Failures(FREE_FAILURES_PER_NAME, clock)

    def check(self, name: str, source: str, *, is_known: bool = False) -> None:
        """Return if the client may try a password now.

        Args:
            is_known: True if the source is a known device, for which failures elsewhere do not count.
        Raises:
            TooManyTriesError: if the client must wait.
        """
        with self._lock:
            wait_s = self._pairs.wait_s((name, source))
            if not is_known:
                wait_s = max(wait_s, self._names.wait_s((name,)))
        if wait_s > 0:
            raise TooManyTriesError(wait_s)

    def count(self, name: str, source: str, *, is_right: bool, is_known: bool = False) -> None:
        """Count a checked attempt; a correct password clears the failures of its source."""
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


def render_login_page(next_url: str, name: str = "", problem: str = "") -> str:
    """Return the login page as HTML.

    Args:
        next_url: the URL to open after the login.
        name: the name entered before.
        problem: why the last attempt failed.
    """
    alert = f'<p class="ddp-login-problem" role="alert" id="problem">{escape(problem)}</p>' if problem else ""
    field_attributes = ' aria-describedby="problem" aria-invalid="true"' if problem else ""
    # If the name is filled in, the password field gets the focus.
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
<input type="hidden" name="next" value="{escape(next_url, quote=True)}">
<label for="username">Name</label>
<input id="username" name="username" value="{escape(name, quote=True)}"
 autocomplete="username" autocapitalize="none" spellcheck="false" maxlength="80"
 required{focus_name}{field_attributes}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" maxlength="200"
 required{focus_password}{field_attributes}>
<button type="submit">Log in</button>
</form>
<p class="ddp-login-words">No account, or forgot your password? Ask the person who set up this page.</p>
</main>
</body>
</html>
"""


# Number of concurrent checks: each takes 32 MiB and a core, and training needs the other cores.
MAX_PARALLEL_CHECKS = 2
MAX_WAITING = 120
# Maximum number of waiting checks per address: a class behind one address logs in at the same time.
MAX_WAITING_PER_ADDRESS = 60
# Limits within an address, for one name and for all names without an account. Further attempts wait.
SLOTS_PER_NAME = 2
SLOTS_OF_UNKNOWN_NAMES = 15
# Known devices have their own thread, so that attempts from unknown sources cannot delay them.
MAX_WAITING_PER_NAME = 5
DEVICE_COOKIE_S = 180 * 24 * 3600


class LoginError(Exception):
    """A refused login; the message is for the user."""

    def __init__(self, message: str, *, status: int, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


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
        self._queues = _WaitingLimit(None, MAX_WAITING_PER_ADDRESS)
        self._semaphores: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._unknown_checks = _PasswordChecks(MAX_PARALLEL_CHECKS, MAX_WAITING, MAX_WAITING_PER_ADDRESS)
        # No total limit is needed, because the number of accounts and the limit per account imply one.
        self._known_checks = _PasswordChecks(1, None, MAX_WAITING_PER_NAME)
        self._lock = threading.Lock()
        self._locks: WeakValueDictionary[tuple[str, str], threading.Lock] = WeakValueDictionary()

    async def begin(self, name: str, password: str, address: str, device: str | None = None) -> str:
        """Return the token of a new session for this name and password.

        Args:
            device: the browser's device token. If this account has logged in on this device before, only
                failures of this browser count, so that no other client can lock it out.
        Raises:
            LoginError: if name or password is wrong, or the client must wait.
        """
        lower_name = name.strip().lower()[:80]
        account = self._accounts.find(lower_name)
        is_known = account is not None and _is_device_of(account, device)
        source, checks = (
            (f"device {device}", self._known_checks)
            if is_known
            else (network_of(address), self._unknown_checks)
        )
        try:
            # Check the limit before waiting, so that a blocked name does not delay other users.
            self._limits.check(lower_name, source, is_known=is_known)
            async with contextlib.AsyncExitStack() as stack:
                if not is_known:
                    await self._wait_for_slot(stack, source, None if account is None else lower_name)
                stack.enter_context(checks.admit(lower_name if is_known else source))
                is_right = await asyncio.get_running_loop().run_in_executor(
                    checks.threads, self._check, lower_name, source, password, account, is_known
                )
        except TooManyTriesError as error:
            raise _wait_error(error.wait_s) from error
        if account is None or not is_right:
            raise LoginError("The name or the password is incorrect.", status=401)
        return self._sessions.begin(account)

    def device_token(self, name: str, device: str | None) -> str:
        """Return the device token of a browser after its login: its current one, or a new one.

        The token is signed with the account's mark, so a new password or role makes all devices unknown.
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

    async def _wait_for_slot(self, stack: contextlib.AsyncExitStack, source: str, name: str | None) -> None:
        """Wait until an attempt from an unknown source may be checked.

        Attempts with wrong names must not delay an entire class.

        Args:
            name: the account's name; None for all names without an account.
        """
        queue, limit = f"{source} {name}", SLOTS_PER_NAME
        if name is None:
            queue, limit = source, SLOTS_OF_UNKNOWN_NAMES
        stack.enter_context(self._queues.admit(queue))
        await stack.enter_async_context(self._semaphores.setdefault(queue, asyncio.Semaphore(limit)))

    def _check(self, name: str, source: str, password: str, account: Account | None, is_known: bool) -> bool:
        """Return True if the password is correct; runs in a thread.

        Checks of one name from one source run one after the other, because only finished checks count
        against the limit.
        """
        with self._lock:
            lock = self._locks.setdefault((name, source), threading.Lock())
        with lock:
            self._limits.check(name, source, is_known=is_known)
            # Check a password also for an unknown name, so that timing does not reveal which accounts exist.
            is_right = account_file.verify_password(
                password, account_file.DUMMY_HASH if account is None else account.password
            )
            self._limits.count(name, source, is_right=is_right and account is not None, is_known=is_known)
        return is_right


class _WaitingLimit:
    """A limit on waiting checks, in total and per sender."""

    def __init__(self, max_waiting: int | None, max_per_sender: int) -> None:
        self._max_waiting = max_waiting
        self._max_per_sender = max_per_sender
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()

    @contextlib.contextmanager
    def admit(self, sender: str) -> Iterator[None]:
        """Count a check until it is done.

        Raises:
            LoginError: if there are too many.
        """
        with self._lock:
            is_full = self._max_waiting is not None and self._waiting.total() >= self._max_waiting
            if is_full or self._waiting[sender] >= self._max_per_sender:
                raise LoginError(
                    "Many users are logging in at the moment. Try again in a few seconds.", status=503
                )
            self._waiting[sender] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[sender] -= 1
                if not self._waiting[sender]:
                    del self._waiting[sender]


class _PasswordChecks(_WaitingLimit):
    """Threads that check passwords, with a limit on waiting checks."""

    def __init__(self, num_threads: int, max_waiting: int | None, max_per_sender: int) -> None:
        super().__init__(max_waiting, max_per_sender)
        self.threads = ThreadPoolExecutor(num_threads, thread_name_prefix="password")


def _device_token(account: Account, number: str) -> str:
    signature = hmac.new(account.mark.encode(), f"device {number}".encode(), "sha256").hexdigest()
    return f"{number}.{signature}"


def _is_device_of(account: Account, device: str | None) -> bool:
    if device is None:
        return False
    expected = _device_token(account, device.partition(".")[0])
    return hmac.compare_digest(device.encode(), expected.encode())


def _wait_error(wait_s: float) -> LoginError:
    rounded_s = max(1, math.ceil(wait_s))
    seconds = "1 second" if rounded_s == 1 else f"{rounded_s} seconds"
    return LoginError(
        f"Too many failed attempts. Try again in {seconds}.",
        status=429,
        retry_after_s=rounded_s,
    )
