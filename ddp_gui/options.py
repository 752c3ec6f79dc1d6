"""The command line's options, and checks of their combinations."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from ddp_gui.http import listening as listening_module
from ddp_gui.http.front import LAST_PORT
from trainers.contract import rundir
from trainers.contract.status import LOCAL
from trainers.engines import registry
from trainers.files import installation
from trainers.machine import host as host_module

# Minimum number of CPU ranks, with which users can see several ranks at work.
MIN_CLASS_CPU_RANKS = 2
# Valid names for --auth-header, without headers that browsers, proxies or this page use for other purposes.
_HEADER = re.compile(r"(?!x-(?:forwarded|gradio)-)(?:x-|remote-)[a-z0-9-]*[a-z0-9]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the page."""

    host: str
    port: int
    runs_dir: Path
    open_browser: bool
    # The accounts file; None: no login.
    auth_file: Path | None = None
    # The number of accounts; None: unknown, because only an engine for one user needs it.
    num_accounts: int | None = None
    # The header in which a proxy sends the user's name; None: no proxy does.
    auth_header: str | None = None
    # The teachers among the users named by the proxy.
    teachers: frozenset[str] = frozenset()
    # True to serve other users without a login.
    is_insecure: bool = False
    # The path prefix of a reverse proxy, such as /ddp; empty: the root.
    root_path: str = ""
    # Additional host names of this machine.
    allowed_hosts: tuple[str, ...] = ()
    # Addresses of proxies whose forwarding headers are trusted.
    trusted_proxies: str = ""
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    # The folders on this machine whose files students may train on.
    data_dirs: tuple[Path, ...] = ()
    # Number of CPU ranks that the queue allocates at the same time; None: no limit.
    cpu_ranks: int | None = None
    # True to keep a warm pool, so that runs start without importing torch.
    keeps_standby: bool = True
    # A folder of additional lessons.
    lessons: Path | None = None
    # A folder with the user's own models, data sets and other plug-ins, whose code runs in every job.
    plugins: Path | None = None
    # True to allow polls with anonymous answers, without login.
    has_anonymous_polls: bool = False
    # The name of the engine, which determines where runs train.
    engine: str = LOCAL
    # The administrator's site file (trainers.engines.site_file).
    site_file: Path | None = None

    @property
    def has_login(self) -> bool:
        """True if every user has a name: from an account of this page, or from the proxy's header."""
        return self.auth_file is not None or self.auth_header is not None

    @property
    def handed_out_cpu_ranks(self) -> int | None:
        """Number of CPU ranks that the queue allocates; with login at most the number of cores."""
        if self.cpu_ranks is not None or not self.has_login:
            return self.cpu_ranks
        return max(MIN_CLASS_CPU_RANKS, host_module.num_cores())

    @property
    def is_one_users(self) -> bool:
        """True if only the user who started the page may use it."""
        return not self.has_login and not self.is_insecure

    @property
    def lets_phones_in(self) -> bool:
        """True if unknown clients may reach only the page's polls."""
        return self.has_anonymous_polls and self.is_one_users and not is_only_here(self.host)

    @property
    def is_tls(self) -> bool:
        return self.ssl_certfile is not None


def check(options: Options) -> None:
    """Refuse options that would expose the page by mistake, or cannot be combined.

    Raises:
        ValueError: with advice.
    """
    _check_paths(options)
    reached_by = _reached_by(options)
    _check_header(options)
    if reached_by and options.is_one_users and not _reaches_polls_alone(options):
        raise ValueError(
            f"{reached_by}, and without a login anyone who reaches this page can start jobs. Either create "
            f"accounts ({installation.command('ddp_gui.accounts')} accounts.json add YOUR-NAME --role "
            "teacher) and add --auth-file accounts.json, or add --insecure if everyone on the network may "
            "do everything"
        )
    _check_one_person(options)
    kind = registry.kinds()[options.engine]
    if kind.site_advice and options.site_file is None:
        raise ValueError(
            f"--engine {kind.name} needs --site FILE, whose table [{kind.name}] {kind.site_advice}"
        )
    if options.site_file is not None and not kind.uses_site:
        alternatives = " or ".join(
            f"--engine {engine.name}" for engine in registry.kinds().values() if engine.uses_site
        )
        raise ValueError(
            f"--site describes a cluster or several machines: add {alternatives}, or remove --site, because "
            f"runs on {kind.label} do not use it"
        )
    if (options.ssl_certfile is None) != (options.ssl_keyfile is None):
        raise ValueError("--ssl-certfile and --ssl-keyfile must be used together")
    if options.has_anonymous_polls and options.has_login:
        raise ValueError(
            "--polls is for a page without logins. With logins, teachers can open polls without this "
            "option: remove it"
        )
    if not all(map(_is_proxy, options.trusted_proxies.split(","))):
        raise ValueError(
            f"--proxy-from is {options.trusted_proxies!r}; allowed: the addresses or networks of "
            "proxies, such as 127.0.0.1"
        )
    if os.path.lexists(options.runs_dir) and not os.path.isdir(options.runs_dir):  # noqa: PTH112
        raise ValueError(f"--runs-dir: {options.runs_dir} is not a folder")
    if options.lessons is not None and not options.lessons.is_dir():
        raise ValueError(f"--lessons: the folder {options.lessons} does not exist")
    for file in (options.ssl_certfile, options.ssl_keyfile):
        if file is not None and not file.is_file():
            raise ValueError(f"the file {file} does not exist")
    if (key := options.ssl_keyfile) is not None and key.stat().st_mode & stat.S_IROTH:
        raise ValueError(f"every user of this machine can read the private key {key}: chmod o-r {key}")


def check_files(options: Options) -> None:
    """Refuse files that cannot be read, before imports that take seconds.

    Raises:
        ValueError: with advice.
    """
    for folder in options.data_dirs:
        if not folder.is_dir():
            raise ValueError(f"--data-dir: the folder {folder} does not exist")
    if options.ssl_certfile is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                options.ssl_certfile, options.ssl_keyfile
            )
        except OSError as error:
            raise ValueError(
                f"--ssl-certfile {options.ssl_certfile} and --ssl-keyfile {options.ssl_keyfile} cannot be "
                f"used ({error.strerror}): pass a certificate and its private key, both in PEM format"
            ) from error
    if options.site_file is not None and not options.site_file.is_file():
        raise ValueError(
            f"--site: the file {options.site_file} does not exist (docs/site.md describes its format)"
        )


def check_address(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, before imports that take seconds.

    Raises:
        ValueError: with advice.
    """
    with socket.socket(family_of(host)) as probe:
        # As for the page's own socket, ended connections must not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bind(probe, host, port)


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of an address to listen on."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def bind(listening: socket.socket, host: str, port: int) -> None:
    """Bind a socket to the page's address.

    Raises:
        ValueError: if it cannot be used, with advice.
    """
    try:
        listening.bind((host, port))
    except (OSError, UnicodeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        problem = f"port {port} on {host!r} cannot be used ({getattr(error, 'strerror', None) or error})"
        if number is None or isinstance(error, socket.gaierror) or number == errno.EADDRNOTAVAIL:
            advice = "--host needs an address of this machine: 127.0.0.1, or 0.0.0.0 for all of its addresses"
        elif number == errno.EACCES:
            advice = "ports below 1024 need administrator rights; use another port, such as --port 7860"
        elif number == errno.EADDRINUSE:
            other_port = port + 1 if port < LAST_PORT else port - 1
            advice = (
                f"the page may already be running. Otherwise use another port, such as --port {other_port}"
            )
        else:
            advice = "try another --port or --host"
        raise ValueError(f"{problem}: {advice}") from error


def _reaches_polls_alone(options: Options) -> bool:
    """Return True if other clients reach only the polls: no proxy, and clients can be identified.

    Raises:
        ValueError: if polls were requested on a system that cannot identify clients.
    """
    if not options.lets_phones_in or options.allowed_hosts or options.trusted_proxies:
        return False
    if not listening_module.can_tell_users_apart():
        raise ValueError(
            "--polls restricts phones to polls, but this system, unlike Linux, does not report who opened "
            "a connection: add --insecure if everyone on the network may do everything, or use accounts"
        )
    return True


def _check_paths(options: Options) -> None:
    """Refuse paths that JSON cannot represent, because every page shows the paths of runs and data."""
    paths = [("--runs-dir", options.runs_dir), ("--lessons", options.lessons), ("--plugins", options.plugins)]
    for option, path in [*paths, *(("--data-dir", path) for path in options.data_dirs)]:
        if path is not None and not rundir.is_visible(str(path)):
            raise ValueError(
                f"{option} is {os.fsencode(path)!r}: the path contains bytes that are not UTF-8 or "
                "invisible characters. Rename the folder, or choose another one"
            )


def _check_one_person(options: Options) -> None:
    """Refuse to serve other users if all runs belong to the user who started the page."""
    has_one_account = options.num_accounts == 1 and options.auth_header is None and not options.is_insecure
    reason = registry.kinds()[options.engine].one_user
    if not reason or options.is_one_users or has_one_account:
        return
    raise ValueError(
        f"--engine {options.engine} {reason}, so the page serves only that user: remove --auth-header and "
        "--insecure, and use --auth-file with only your account. Other users must start their own pages"
    )


def _check_header(options: Options) -> None:
    if options.auth_header is None:
        if options.teachers:
            raise ValueError(
                "--teacher requires --auth-header. In a file of accounts, each account has a role "
                f"({installation.command('ddp_gui.accounts')} FILE add NAME --role teacher)"
            )
        return
    if not _HEADER.fullmatch(options.auth_header):
        raise ValueError(
            f"--auth-header is {options.auth_header!r}; allowed: a header that only your proxy sets, "
            "such as X-Remote-User (letters, digits and dashes; not X-Forwarded-…)"
        )
    if options.auth_file is not None or options.is_insecure:
        raise ValueError(
            "with --auth-header, your proxy authenticates users: remove --auth-file and --insecure, and "
            "define teachers by --teacher NAME"
        )
    if not options.trusted_proxies or not all(map(_is_address, options.trusted_proxies.split(","))):
        raise ValueError(
            "--auth-header trusts the name that the proxy sends, so it needs --proxy-from with only the "
            "proxy's addresses, such as 127.0.0.1 (no *, no network, no name)"
        )


def _is_proxy(text: str) -> bool:
    if text.strip() in ("", "*"):
        return True
    try:
        ipaddress.ip_network(text.strip())
    except ValueError:
        return False
    return True


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.ip_address(text.strip()).is_unspecified
    except ValueError:
        return False


def root_path(text: str) -> str:
    """Return a normalised prefix with a leading slash and no trailing slash.

    Raises:
        ValueError: if the text is not only a path.
    """
    stripped = text.strip("/")
    if any(part in ("", ".", "..") for part in stripped.split("/") if stripped) or not stripped.isascii():
        raise ValueError(f"--root-path is {text!r}; allowed: a path such as /ddp")
    if any(letter in stripped for letter in "?#%:\\\"'<> "):
        raise ValueError(f"--root-path is {text!r}; allowed: a path such as /ddp, not a complete URL")
    return f"/{stripped}" if stripped else ""


def is_only_here(host: str) -> bool:
    """Return True if an address is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reached_by(options: Options) -> str:
    """Return the option through which other users can reach the page, as text; empty if they cannot."""
    if not is_only_here(options.host):
        return f"--host {options.host} makes the page reachable from other machines"
    if options.allowed_hosts:
        return f"--allow-host {options.allowed_hosts[0]} makes the page reachable by that name"
    if options.trusted_proxies:
        return "--proxy-from makes the page reachable through a proxy"
    return ""
