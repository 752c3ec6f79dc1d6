"""Assembles the app: pages, stream, endpoints, options."""

from __future__ import annotations

import functools
import gc
import os
import socket
import sys
import threading
import webbrowser

import gradio as gr
import uvicorn
from fastapi import FastAPI

from ddp_gui import lifespan, operations
from ddp_gui.auth import login_routes, rights
from ddp_gui.auth.account_file import AccountFile
from ddp_gui.auth.login import Login
from ddp_gui.auth.login_routes import HeaderGate, SessionGate
from ddp_gui.auth.rights import DataAccess
from ddp_gui.background.loop_delay import LoopDelay
from ddp_gui.background.torch_template import TorchTemplate
from ddp_gui.gradio_routes import callers, gate, uploads
from ddp_gui.gradio_routes.gate import Gate
from ddp_gui.gradio_routes.uploads import Uploads
from ddp_gui.http import shell
from ddp_gui.http.connections import BoundedProtocol
from ddp_gui.http.front import App, Front
from ddp_gui.http.listening import Listener
from ddp_gui.http.own_proxy import OwnProxy
from ddp_gui.learn import code_lesson, learn_routes, poll_routes
from ddp_gui.learn import progress as progress_module
from ddp_gui.learn.code_lesson import CodeLessonApi, CodeLibrary
from ddp_gui.learn.learn_routes import LearnApi, Library
from ddp_gui.learn.poll_routes import PhoneGate, PollsApi
from ddp_gui.learn.polls import PollSessions
from ddp_gui.learn.progress import ProgressApi, ProgressFiles
from ddp_gui.learn.report import request
from ddp_gui.machine import machine_routes
from ddp_gui.machine.communication import CommunicationChecks, LinkChecks
from ddp_gui.machine.machine_check import MachineChecks
from ddp_gui.machine.machine_routes import MachineApi
from ddp_gui.machine.report import MachineReport
from ddp_gui.options import Options, bind, family_of
from ddp_gui.plan.catalogue import CatalogueSource
from ddp_gui.plan.own_data import OwnDataInspector
from ddp_gui.plan.package_install import PackageInstalls
from ddp_gui.queue import queue_routes
from ddp_gui.queue.policy import QueueDevices
from ddp_gui.queue.presenter import QueuePresenter
from ddp_gui.queue.queue_routes import QueueApi
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.run import downloads, logs, predictions, recordings, references, samples, stream, take_home
from ddp_gui.run.model_process import ModelProcesses
from ddp_gui.run.predictions import PredictApi
from ddp_gui.run.take_home import Copies
from ddp_gui.runs import exports, imports, run_list_routes
from ddp_gui.runs.imports import ImportApi
from ddp_gui.runs.run_list_routes import RunAdminApi
from ddp_gui.runs.runs import RunStore
from ddp_gui.script.script_api import ScriptApi, ScriptRules
from ddp_gui.train import page
from ddp_gui.train.api import Api
from ddp_gui.train.page import make_theme
from trainers.engines import registry
from trainers.engines.base import EngineOptions
from trainers.files.plain_files import ASSETS

# Python's default is 5 ms: the event loop would wait that long for each computing thread at every read and
# write.
SWITCH_INTERVAL_S = 0.0005
LESSONS = ASSETS / "lessons"
QUEUE_POLL_EVERY_S = 0.02
DEAD_CONNECTION_MS = 20_000


def serve(options: Options, catalogue: CatalogueSource) -> None:
    """Serve the page until it is interrupted.

    Raises:
        ValueError: if the port is in use, or the page would be exposed by mistake.
    """
    login = _login(options)
    listener = _listen(options)
    print(f"Port {listener.getsockname()[1]} is free. Building the page …", flush=True)
    app = build_app(options, catalogue, login)
    scheme = "https" if options.is_tls else "http"
    url = f"{scheme}://{_display_host(options.host)}:{listener.getsockname()[1]}{options.root_path}"
    config = uvicorn.Config(
        add_access_checks(app, options, login),
        log_level="warning",
        timeout_graceful_shutdown=2,
        http=functools.partial(  # type: ignore[arg-type]
            BoundedProtocol, listener=listener, phones=make_phone_app(app, options)
        ),
        # No WebSockets: the page does not use them, and they would bypass the limits.
        ws="none",
        # Only asyncio's loop accepts connections through the class `Listener`.
        loop="asyncio",
        server_header=False,
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=options.trusted_proxies or "",
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
    )
    server = uvicorn.Server(config)
    print(
        f"The page is at {url}  (runs are stored in {options.runs_dir}; Ctrl-C ends the page, not the runs)",
        flush=True,
    )
    tune_interpreter()
    if options.open_browser:
        threading.Timer(0.5, webbrowser.open, [url]).start()
    server.run(sockets=[listener])


def _login(options: Options) -> Login | None:
    """Return the login with its accounts; None without login, or if a proxy authenticates the users."""
    if options.has_login:
        # Work outside of a request belongs to no user, unless the code sets one.
        rights.make_nobody_the_default_user()
    if options.auth_file is None:
        return None
    return Login(AccountFile(options.auth_file), f"ddp_session_{options.port}")


def add_access_checks(app: FastAPI, options: Options, login: Login | None) -> App:
    """Return the app behind its access checks."""
    protected: App = app
    if options.auth_header is not None:
        protected = HeaderGate(app, options.auth_header, options.teachers)
    elif login is not None:
        protected = SessionGate(app, login)
    cookie_names = () if login is None else (login.cookie_name, login.device_cookie_name)
    own_proxy = OwnProxy.from_environment(os.environ)
    gate_app = Gate(protected, options.host, options.allowed_hosts, own_proxy)
    front = Front(gate_app, options.root_path, cookie_names)
    return front if own_proxy is None else own_proxy.wrap(front)


def make_phone_app(app: FastAPI, options: Options) -> App | None:
    """Return the app for unknown clients, who may only answer polls; None if they have no access."""
    if not options.lets_phones_in:
        return None
    return Front(Gate(PhoneGate(app), options.host, options.allowed_hosts), options.root_path)


def _script_rules(options: Options) -> ScriptRules:
    return ScriptRules(
        has_login=options.has_login,
        # An engine for one user starts runs under the account of this user, which the options have checked.
        is_one_users=options.is_one_users or bool(registry.kinds()[options.engine].one_user),
        data_dirs=options.data_dirs,
    )


def build_app(options: Options, catalogue: CatalogueSource, login: Login | None = None) -> FastAPI:
    """Build the complete web app: the page's routes, and Gradio mounted below them."""
    gate.shorten_session_starts()
    template = TorchTemplate()
    store = RunStore(options.runs_dir, catalogue, OwnDataInspector(template))
    store.needs.prefetch()
    checks = CommunicationChecks()
    machine_checks = MachineChecks(options.runs_dir)
    installs = PackageInstalls(catalogue)
    model_processes = ModelProcesses(
        template, keeps_ready=options.keeps_standby, with_free_gpus=lambda use: scheduler.with_free_gpus(use)
    )
    predict, copies = PredictApi(store, model_processes), Copies(store)
    engine = registry.kinds()[options.engine].create(
        EngineOptions(
            runs_dir=options.runs_dir, site_file=options.site_file, keeps_ready=options.keeps_standby
        )
    )
    registry.register(engine)
    links = LinkChecks(engine)
    delay = LoopDelay()
    report = MachineReport(options.runs_dir, catalogue, checks, machine_checks, engine, links, delay)
    devices = QueueDevices(
        options.runs_dir,
        options.handed_out_cpu_ranks,
        lambda: {
            **engine.preparation.processes(),
            **machine_checks.processes(),
            **model_processes.processes(),
        },
        machine_checks.gpus,
    )
    scheduler = Scheduler(
        options.runs_dir,
        devices,
        store.read_again,
        engine,
        has_login=options.has_login,
        reclaim_gpus=model_processes.reclaim_gpus,
    )
    presenter = QueuePresenter(scheduler, store)
    folder = uploads.uploads_folder(options.runs_dir)
    access = DataAccess(folder, options.data_dirs)
    upload_store = Uploads(folder, access)
    scripts = ScriptApi(store, scheduler, _script_rules(options))
    api = Api(store, scheduler, presenter, access, model_processes, scripts.plan_again)
    folders = [LESSONS, *([options.lessons] if options.lessons else [])]
    library, code_library = Library(folders), CodeLibrary(folders)
    code_lessons = CodeLessonApi(code_library, scripts, store)
    lessons, progress = LearnApi(library, api, store), ProgressFiles(options.runs_dir)
    sessions = PollSessions(
        store, lessons, has_login=options.has_login, is_anonymous=options.has_anonymous_polls
    )
    # Gradio reads this variable during setup; the default is a folder that all users of this machine share.
    os.environ["GRADIO_TEMP_DIR"] = str(upload_store.incoming)
    app_lifespan = lifespan.make_lifespan(
        store,
        upload_store,
        (checks, machine_checks, installs, model_processes, copies),
        scheduler,
        engine,
        delay,
    )
    app = FastAPI(lifespan=app_lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(OSError, operations.answer_os_error)
    apis = (
        api,
        RunAdminApi(store),
        ImportApi(store, upload_store, scheduler.check_disk_space),
        QueueApi(store, scheduler, presenter),
        MachineApi(checks, machine_checks, links, installs, report, store, scheduler),
        predict,
        copies,
        lessons,
        ProgressApi(progress, library, code_library),
        PollsApi(sessions, library),
        scripts,
        code_lessons,
    )
    app.include_router(operations.make_router(*apis))
    app.include_router(shell.make_static_router())
    app.include_router(shell.make_glossary_router())
    shell.mount_assets(app)
    app.include_router(login_routes.make_router(login, has_header=options.auth_header is not None))
    app.include_router(run_list_routes.make_router(store, presenter.places))
    app.include_router(exports.make_router(store))
    app.include_router(imports.make_router(store))
    app.include_router(stream.make_router(store))
    app.include_router(logs.make_router(store))
    app.include_router(downloads.make_download_router(store))
    app.include_router(downloads.make_elsewhere_router(store))
    app.include_router(downloads.make_code_router(store))
    app.include_router(recordings.make_router(store))
    app.include_router(references.make_router(store))
    app.include_router(samples.make_router(store))
    app.include_router(predictions.make_router(predict))
    app.include_router(take_home.make_router(copies))
    app.include_router(machine_routes.make_router(report, store, machine_checks))
    app.include_router(queue_routes.make_router(scheduler, presenter, store))
    app.include_router(learn_routes.make_router(library, api, store))
    app.include_router(code_lesson.make_router(code_lessons, library))
    app.include_router(progress_module.make_router(progress, library, has_login=options.has_login))
    app.include_router(poll_routes.make_router(sessions, options))
    app.include_router(request.make_router(library, code_library, store))
    app.include_router(shell.make_router())
    with gr.Blocks(title=shell.TITLE, analytics_enabled=False) as demo:
        # Register the endpoints first, so that no handler of a page can take an endpoint's name.
        operations.register(*apis)
        page.build(demo, api, store, upload_store, catalogue, scheduler.capacity(), engine)
    # Any client can create sessions. Before this limit is reached, `forget_oldest` drops sessions of the user
    # with the most sessions.
    demo.state_session_capacity = 2 * callers.MAX_SESSIONS
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        demo,
        path="/",
        head=shell.head(),
        theme=make_theme(),
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        max_file_size=uploads.MAX_BYTES,
        # Do not show messages of unexpected errors, which may contain anything.
        show_error=False,
    )
    # Gradio checks received paths only if `has_launched` is set, which mounting does not do.
    demo.has_launched = True
    slow_queue_polling(demo)
    gate.protect_routes(mounted, demo, upload_store)
    return mounted


def tune_interpreter() -> None:
    """Reduce the event loop's waiting for other threads and for the garbage collector."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Objects built so far are permanent: collecting all of them would block all requests for 0.4 s.
    gc.freeze()


def slow_queue_polling(demo: gr.Blocks) -> None:
    """Make Gradio's queue poll for clicks fifty times a second.

    By default it polls a thousand times a second, even without clients, which takes 3% of a core.
    """
    queue = demo._queue  # noqa: SLF001 - no setting of Gradio controls it
    queue.sleep_when_free = QUEUE_POLL_EVERY_S
    queue.progress_update_sleep_when_free = 5 * QUEUE_POLL_EVERY_S


def _listen(options: Options) -> Listener:
    listener = Listener(
        family_of(options.host),
        options.trusted_proxies,
        is_one_users=options.is_one_users,
        trusts_proxy_names=options.auth_header is not None,
        lets_phones_in=options.lets_phones_in,
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Accepted connections inherit this option, which ends connections that no longer take data.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_CONNECTION_MS)
    try:
        bind(listener, options.host, options.port)
    except ValueError:
        listener.close()
        raise
    return listener


def _display_host(host: str) -> str:
    name = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "::" else host  # noqa: S104
    return f"[{name}]" if ":" in name and not name.startswith("[") else name
