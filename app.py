"""Open the page: parse the options, then run ddp_gui.server."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ddp_gui import login_node
from ddp_gui.gradio_routes import uploads
from trainers.contract.status import LOCAL
from trainers.engines import registry
from trainers.files import installation, private_files
from trainers.files.plain_files import PLUGINS_VARIABLE, REPOSITORY
from trainers.machine.os_errors import explain

if TYPE_CHECKING:
    from ddp_gui.options import Options
    from ddp_gui.plan.catalogue import CatalogueSource


_LAST_PORT = 65_535
# Options that have no meaning with --ssh, with their defaults.
_NOT_WITH_SSH: Mapping[str, object] = {
    "host": "127.0.0.1",
    "auth_file": None,
    "auth_header": None,
    "teacher": [],
    "insecure": False,
    "data_dir": [],
    "lessons": None,
    "plugins": None,
    "polls": False,
    "root_path": "",
    "allow_host": [],
    "proxy_from": "",
    "ssl_certfile": None,
    "ssl_keyfile": None,
}


def main() -> None:
    """Parse the options and serve the page."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a Latin-1 terminal has no "…"
    if sys.argv[1:2] == ["export-lessons"]:
        from ddp_gui.learn import export

        sys.exit(export.main(sys.argv[2:]))
    try:
        arguments = parse_options(sys.argv[1:])
        _print_step("Starting the page: checking the options and the folder of the runs …")
        if arguments.ssh is not None:
            sys.exit(_show_login_node(arguments))
        from ddp_gui.options import check_address, check_files

        check_address(arguments.host, arguments.port)
        options = checked_options(arguments)
        if arguments.until_silence:
            login_node.end_without(sys.stdin.fileno(), lambda: os.kill(os.getpid(), signal.SIGTERM))
        check_files(options)
        _check_accounts(options.auth_file)
        # Gradio reads GRADIO_TEMP_DIR at import. All users of this machine share the default folder.
        os.environ["GRADIO_TEMP_DIR"] = str(make_folders(options.runs_dir))
        if options.plugins is not None:
            os.environ[PLUGINS_VARIABLE] = str(options.plugins)
    except (ValueError, OSError) as error:
        _exit_with_error(f"The page is not served: {explain(error)}.")
    # No telemetry, and no downloads.
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    _print_step("Importing Gradio, and listing models, data sets and GPUs …")
    from ddp_gui.background import trainer_process
    from ddp_gui.devices import capacity
    from ddp_gui.plan.catalogue import CatalogueError, CatalogueSource, default_cache_file

    catalogue = CatalogueSource(default_cache_file())
    gpus_file = trainer_process.default_cache_file("usable_gpus")
    # Reading the catalogue and importing Gradio each take seconds, so they run in parallel.
    threads = [
        threading.Thread(target=_preload_catalogue, args=(catalogue,), daemon=True),
        threading.Thread(target=capacity.restrict_to_usable_gpus, args=(gpus_file,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    from ddp_gui.server import serve

    for thread in threads:
        thread.join()
    try:
        serve(options, catalogue)
    except (ValueError, CatalogueError) as error:
        _exit_with_error(f"The page cannot be served: {error}")


class _Parser(argparse.ArgumentParser):
    """Reports a wrong option in one line, like all other errors that prevent the page from being served."""

    def error(self, message: str) -> NoReturn:
        """Exit, naming the option."""
        _exit_with_error(
            f"The page is not served: {message}. {installation.command()} --help lists the options."
        )


def _exit_with_error(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


def _print_step(step: str) -> None:
    """Print the current step of the start: starting can take half a minute on a busy machine."""
    print(step, flush=True)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    engines = registry.kinds()
    parser = _Parser(
        description="Train networks on several GPUs from a web page.",
        prog=installation.command(),
        epilog=f"{installation.command()} export-lessons OUT writes the lessons into HTML files. "
        + (
            "Other commands: rankscope start (shows the start in the browser), rankscope add-to-menu, "
            "rankscope accounts, rankscope check-machine."
            if installation.is_installed()
            else "run.sh also takes --torch-build NAME, which replaces torch with another build (README)."
        ),
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=7860, help="port to listen on (default: %(default)s)")
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=installation.default_runs_dir(),
        help="folder of the runs (default: %(default)s)",
    )
    parser.add_argument(
        "--plugins",
        type=Path,
        metavar="DIR",
        help="a folder of your own models, data sets and lessons (docs/adding.md), whose code every "
        "job runs (default: plugins, next to the folder of the runs)",
    )
    parser.add_argument(
        "--cpu-ranks",
        type=_count,
        metavar="N",
        help="maximum number of CPU ranks that train at the same time; further runs wait in the queue "
        "(default: no limit; with logins, the number of cores)",
    )
    parser.add_argument(
        "--no-standby",
        action="store_true",
        help="keep no ranks ready while no run is live: saves their memory, but a start takes longer",
    )
    parser.add_argument(
        "--engine",
        choices=tuple(engines),
        default=LOCAL,
        help=f"where runs train: {', '.join(f'{kind.name}: {kind.label}' for kind in engines.values())} "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--site", type=Path, metavar="FILE",
        help="site file with defaults and limits for runs on a cluster or on several machines (docs/site.md)",
    )  # fmt: skip
    parser.add_argument(
        "--ssh", metavar="LOGIN-NODE",
        help="with the engine of a login node, from your own machine: run the page there and show it here",
    )  # fmt: skip
    parser.add_argument(
        "--project",
        metavar="FOLDER",
        help="with --ssh: this project's folder on the login node (default: the same path as here)",
    )
    # Run git for the commit only if --version is given. argparse also accepts abbreviations of the option.
    asks_for_version = any(len(argument) > 2 and "--version".startswith(argument) for argument in arguments)
    parser.add_argument(
        "--version",
        action="version",
        version=f"Rankscope {installation.version()}" if asks_for_version else "",
        help="print the version, or the commit of a checkout, and exit",
    )
    parser.add_argument("--until-silence", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser window")
    _add_class_options(parser)
    return parser.parse_args(arguments)


def _add_class_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for a class", "docs/class.md explains how to combine these")
    group.add_argument(
        "--auth-file",
        type=Path,
        help=f"who may log in; made by: {installation.command('ddp_gui.accounts')} FILE add NAME",
    )
    group.add_argument(
        "--auth-header", metavar="HEADER",
        help="the proxy of --proxy-from authenticates users, and sends each user's name in this header",
    )  # fmt: skip
    group.add_argument(
        "--teacher", action="append", default=[], metavar="NAME",
        help="with --auth-header: a user who is a teacher; all others are students; can be repeated",
    )  # fmt: skip
    group.add_argument(
        "--insecure",
        action="store_true",
        help="allow every user of the network to do everything, without a login",
    )
    group.add_argument(
        "--data-dir", type=Path, action="append", default=[], metavar="FOLDER",
        help="a folder whose files students may train on, in addition to their own uploads; can be repeated",
    )  # fmt: skip
    group.add_argument(
        "--lessons",
        type=Path,
        metavar="DIR",
        help="a folder of your own lessons (docs/lessons.md), in addition to the built-in ones",
    )
    group.add_argument(
        "--polls",
        action="store_true",
        help="without logins: open lessons as polls; phones can open these with a QR code, and nothing else",
    )
    group.add_argument(
        "--root-path", default="", metavar="/PREFIX", help="path prefix at which a proxy serves the page"
    )
    group.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a host name under which browsers open this page; can be repeated",
    )  # fmt: skip
    group.add_argument(
        "--proxy-from", default="", metavar="ADDRESSES",
        help="trust X-Forwarded-For and X-Forwarded-Proto from these addresses, such as 127.0.0.1",
    )  # fmt: skip
    group.add_argument("--ssl-certfile", type=Path, help="certificate, to serve https without a proxy")
    group.add_argument("--ssl-keyfile", type=Path, help="the certificate's private key")


def _show_login_node(arguments: argparse.Namespace) -> str | None:
    """Show the page of a login node until it ends; return the reason for the end, or None after Ctrl+C.

    Raises:
        ValueError: if another option cannot be combined with --ssh.
        OSError: if the port cannot be used, or ssh is not installed.
    """
    options = _login_node_options(arguments)
    # Restore Ctrl+C even if the parent process ignores it, as shells do for background jobs.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return "The page is no longer shown: " + login_node.serve(
            arguments.ssh,
            project=arguments.project or str(REPOSITORY),
            options=options,
            port=arguments.port,
            open_browser=not arguments.no_browser,
        )
    except KeyboardInterrupt:
        return None


def _login_node_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options of the page on the login node.

    Raises:
        ValueError: naming an option that has no meaning with --ssh.
    """
    if not registry.kinds()[arguments.engine].is_on_login_node:
        kinds = registry.kinds().values()
        alternatives = " or ".join(f"--engine {kind.name}" for kind in kinds if kind.is_on_login_node)
        raise ValueError(f"--ssh is for the login node of a cluster: add {alternatives}")
    if not arguments.ssh or arguments.ssh.startswith("-"):
        raise ValueError(f"--ssh is {arguments.ssh!r}; allowed: a host, as you type it after ssh")
    if installation.is_installed() and arguments.project is None:
        raise ValueError("--ssh needs --project FOLDER: the checkout on the login node")
    values = vars(arguments)
    unsupported = [name for name, default in _NOT_WITH_SSH.items() if values[name] != default]
    if unsupported:
        option = f"--{unsupported[0].replace('_', '-')}"
        raise ValueError(
            f"{option} cannot be combined with --ssh, which shows the page only to you: remove {option}"
        )
    forwarded = {
        "--runs-dir": arguments.runs_dir,
        "--site": arguments.site,
        "--cpu-ranks": arguments.cpu_ranks,
    }
    options = [word for name, value in forwarded.items() if value is not None for word in (name, str(value))]
    options = ["--engine", arguments.engine, *options]
    return [*options, *(["--no-standby"] if arguments.no_standby else [])]


def make_folders(runs_dir: Path) -> Path:
    """Create the folders of runs and, next to it, of uploads; return the folder of new uploads.

    Raises:
        ValueError: if that is not possible, with the option for another folder.
    """
    folder = runs_dir
    try:
        private_files.close_runs(runs_dir)
        if not os.access(runs_dir, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        private_files.begin(runs_dir)
        folder = uploads.uploads_folder(runs_dir)
        return uploads.make_incoming(folder)
    except OSError as error:
        purpose = "runs" if folder == runs_dir else "uploads, next to the folder of the runs,"
        raise ValueError(
            f"the folder of the {purpose} cannot be used ({error.strerror}: {folder}). Choose one of your "
            "own with --runs-dir, such as --runs-dir ~/ddp-web/runs; on a cluster, one that every node sees "
            "at the same path"
        ) from error


def checked_options(arguments: argparse.Namespace) -> Options:
    """Return the validated options.

    Raises:
        ValueError: if options contradict each other; the message says how to fix them.
    """
    from ddp_gui import options
    from ddp_gui.auth.account_file import validate_name

    plugins = _plugins(arguments)
    lessons = arguments.lessons or (plugins and plugins / "lessons")
    checked = options.Options(
        host=arguments.host,
        port=arguments.port,
        runs_dir=arguments.runs_dir.resolve(),
        open_browser=not arguments.no_browser,
        auth_file=arguments.auth_file and arguments.auth_file.resolve(),
        num_accounts=_num_accounts(arguments),
        auth_header=arguments.auth_header,
        teachers=frozenset(map(validate_name, arguments.teacher)),
        is_insecure=arguments.insecure,
        root_path=options.root_path(arguments.root_path),
        allowed_hosts=tuple(arguments.allow_host),
        trusted_proxies=arguments.proxy_from,
        ssl_certfile=arguments.ssl_certfile,
        ssl_keyfile=arguments.ssl_keyfile,
        data_dirs=tuple(folder.resolve() for folder in arguments.data_dir),
        lessons=lessons.resolve() if lessons and (arguments.lessons or lessons.is_dir()) else None,
        plugins=plugins,
        has_anonymous_polls=arguments.polls,
        cpu_ranks=arguments.cpu_ranks,
        keeps_standby=not arguments.no_standby,
        engine=arguments.engine,
        site_file=arguments.site and arguments.site.resolve(),
    )
    options.check(checked)
    return checked


def _plugins(arguments: argparse.Namespace) -> Path | None:
    """Return the folder of the user's plug-ins, or None.

    Raises:
        ValueError: if the named folder does not exist, or another user can change a file in it.
    """
    folder: Path | None = arguments.plugins
    kind = registry.kinds()[arguments.engine]
    if kind.has_other_code:
        if folder is None:
            return None
        raise ValueError(
            f"--plugins cannot be combined with --engine {kind.name}, whose hosts have their own code"
        )
    try:
        return private_files.plugins(arguments.runs_dir, folder)
    except ValueError as error:
        raise ValueError(f"--plugins: {error}") from error


def _check_accounts(file: Path | None) -> None:
    """Refuse a file of accounts that is unreadable or empty, before imports that take seconds.

    Raises:
        ValueError: naming the option and the command that creates such a file.
    """
    from ddp_gui.auth.account_file import AccountError, AccountFile

    if file is None:
        return
    add_command = f"{installation.command('ddp_gui.accounts')} {file} add YOUR-NAME --role teacher"
    try:
        accounts = AccountFile(file).read()
    except AccountError as error:
        raise ValueError(f"--auth-file: {error}. Name a file made by: {add_command}") from error
    if not accounts:
        raise ValueError(f"--auth-file: {file} has no account, so no one could log in: {add_command}")


def _num_accounts(arguments: argparse.Namespace) -> int | None:
    """Return the number of accounts, or None if the engine does not need it.

    Raises:
        AccountError: if the file of accounts cannot be read.
    """
    from ddp_gui.auth.account_file import AccountFile

    if arguments.auth_file is None or not registry.kinds()[arguments.engine].one_user:
        return None
    return len(AccountFile(arguments.auth_file.resolve()).read())


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use a whole number from 1 to {_LAST_PORT}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _preload_catalogue(catalogue: CatalogueSource) -> None:
    from ddp_gui.plan.catalogue import CatalogueError

    try:
        catalogue.get()
    except CatalogueError as error:
        print(f"{error}", file=sys.stderr)


if __name__ == "__main__":
    main()
