"""The frame of every page: head, navigation, static files and glossary."""

from __future__ import annotations

import functools
import gzip
import html
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from ddp_gui.http import front
from trainers.contract import config
from trainers.files.plain_files import ASSETS, REPOSITORY

# Invisible characters: terminal escapes, bidirectional marks, zero-width characters, blank letters and lone
# surrogates (Unicode's Default_Ignorable_Code_Point, Cf, Zl, Zp and Cc, and blanks classified as letters).
# Excludes the Arabic signs below a number, which are visible.
_INVISIBLE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufffb\ufffe\uffff\U00013430-\U0001345f\U00016fe4\U0001bca0-\U0001bca3"
    "\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Joiners, selectors and tags are visible parts of emoji, Persian and Indic words, Chinese names and regional
# flags. Elsewhere they only make different names look equal.
_EMOJI = (
    "[\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u27bf\u2900-\u297f"
    "\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_JOINED = "[\u0600-\u060b\u0620-\u0dff\u1000-\u109f\u1780-\u17b3\u17b6-\u17ff\ufb50-\ufdff\ufe70-\ufefc]"
_IDEOGRAPH = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_VISIBLE_SEQUENCES = "|".join(
    (
        "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f",
        "[0-9#*]\ufe0f\u20e3",
        f"{_EMOJI}(?:[\ufe0e\ufe0f]\u200d?|\u200d)",
        f"{_JOINED}[\u200c\u200d]",
        f"{_IDEOGRAPH}[\U000e0100-\U000e01ef]",
    )
)
_INVISIBLE_PATTERN = re.compile(f"(?:{_VISIBLE_SEQUENCES})|({_INVISIBLE})")


def visible(text: str) -> str:
    """Return a text in which code points replace invisible characters that have an effect."""
    return _INVISIBLE_PATTERN.sub(lambda match: f"⟨{_code_point(match[1])}⟩" if match[1] else match[0], text)


def as_html(text: object) -> str:
    """Return HTML that shows an untrusted text literally."""
    return f"<bdi>{html.escape(visible(str(text)))}</bdi>"


def _code_point(character: str) -> str:
    return "ESC" if character == "\x1b" else f"U+{ord(character):04X}"


PAGE = REPOSITORY / "docs" / "glossary.md"
_HEAD = re.compile(r"^\| term \|[^\n]*\n\|[-|]+\|\n", re.MULTILINE)


def parse_glossary(page: Path) -> dict[str, str]:
    """Return the definition of each term in the page's table.

    Raises:
        ValueError: naming the line that is not a row of two cells, or the term that is defined twice.
    """
    definition_by_term: dict[str, str] = {}
    for line in _HEAD.split(page.read_text(encoding="utf-8"))[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 2 or not all(cells):
            raise ValueError(f"{page.name}: {line!r} is not a row of a term and its definition")
        term, definition = cells
        if term in definition_by_term:
            raise ValueError(f"{page.name} defines {term} twice")
        definition_by_term[term] = definition.replace("`", "")
    return definition_by_term


@functools.cache
def definitions() -> dict[str, str]:
    """Return the definition of each term."""
    return parse_glossary(PAGE)


def field_terms() -> dict[str, str]:
    """Return the term that explains a field's label, by field."""
    return {name: setting.term for name, setting in config.settings().items() if setting.term}


def glossary_term(name: str, label: str = "") -> str:
    """Return the HTML of a term with a tooltip, shown as `label` if given."""
    assert name in definitions(), name
    label_html, escaped = html.escape(label or name), html.escape(name, quote=True)
    return f'<button type="button" class="ddp-term" data-term="{escaped}">{label_html}</button>'


def make_glossary_router() -> APIRouter:
    """Return the route from which a browser reads the tooltips."""
    router = APIRouter(prefix="/live")

    @router.get("/glossary")
    def glossary() -> dict[str, dict[str, str]]:
        return {"definitions": definitions(), "fields": field_terms()}

    return router


SERVED_FOLDERS = ("css", "js", "icons")
TYPEFACE = "live/assets/fonts/inter-4.001-latin.woff2"
_FOR_A_DAY = "public, max-age=86400"
_FOR_A_YEAR = "public, max-age=31536000, immutable"


def make_static_router() -> APIRouter:
    """Return the routes of CodeMirror and plotly.js: its partial bundle compiles five times as fast."""
    router = APIRouter(prefix="/live")

    def script(request: Request, name: str, cache_control: str) -> Response:
        takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"Cache-Control": cache_control, "Vary": "Accept-Encoding"}
        if takes_gzip:
            headers["Content-Encoding"] = "gzip"
        body = compressed(name) if takes_gzip else vendored(name)
        return Response(body, media_type="text/javascript", headers=headers)

    @router.get("/plotly.min.js")
    def plotly(request: Request) -> Response:
        return script(request, "plotly-basic.min.js", _FOR_A_YEAR)

    # The editor. Its URL has no version, so the browser requests it again after a day.
    @router.get("/codemirror.min.js")
    def codemirror(request: Request) -> Response:
        return script(request, "codemirror.min.js", _FOR_A_DAY)

    # Serve only the font file; its licence and description are for readers of the source.
    @router.get(TYPEFACE.removeprefix("live"))
    def typeface() -> FileResponse:
        path = ASSETS.parent / TYPEFACE.removeprefix("live/")
        return FileResponse(path, media_type="font/woff2", headers={"Cache-Control": _FOR_A_YEAR})

    return router


def mount_assets(app: FastAPI) -> None:
    """Serve the folders of `assets/` that a browser needs, and no others."""
    for folder in SERVED_FOLDERS:
        app.mount(f"/live/assets/{folder}", _RevalidatedFiles(directory=ASSETS / folder))


class _RevalidatedFiles(StaticFiles):
    """Makes the browser revalidate each time, so that no page is stale after an update."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


def plotly_version() -> str:
    """Return the version that makes a browser fetch plotly.js again after an update."""
    file_stat = _plotly_file().stat()
    return f"{file_stat.st_size:x}{int(file_stat.st_mtime):x}"


def _plotly_file() -> Path:
    return ASSETS / "vendor" / "plotly-basic.min.js"


def vendored(name: str) -> bytes:
    """Return a third-party script."""
    return (ASSETS / "vendor" / name).read_bytes()


@functools.cache
def compressed(name: str) -> bytes:
    """Return a third-party script, compressed by gzip."""
    return gzip.compress(vendored(name), compresslevel=6)


TITLE = "Rankscope"
STYLES = (
    "shared/colours",
    "shared/gradio",
    "shared/base",
    "shared/controls",
    "shared/code",
    "shared/messages",
    "shared/nav",
    "train/first_page",
    "train/own_data",
    "train/form",
    "run/progress",
    "run/charts",
    "run/ranks",
    "run/fingerprints",
    "run/sample",
    "run/try",
    "run/logs",
    "run/page",
    "run/look_closer",
    "run/theatre",
    "run/projector",
    "script/page",
    "runs/live_strip",
    "machine/page",
    "runs/page",
    "queue/page",
    "learn/drawings",
    "learn/page",
    "learn/polls",
    "auth/person",
    "train/terms",
    "shared/print",
)
# Each page: its path, its name in the navigation, and the element that a script fills.
PAGES = (
    ("runs", "Runs", "ddp-runs"),
    ("machine", "Machine", "ddp-machine"),
    ("learn", "Learn", "ddp-learn"),
)
# A script shows the link to this page if runs are queued or the page has logins.
QUEUE_PAGE = ("queue", "Queue", "ddp-queue")
# Scripts that fetch data in parallel with the page's modules, because the list may be long.
EARLY = {
    "runs": """<script>
if (!/[?&](compare|bin)=/.test(location.search)) {
  window.ddpEarlyRows = fetch("./live/runs?since=-1", { cache: "no-store" });
}
</script>
""",
    "run": """<script>
window.ddpEarlySummary = (() => {
  const id = new URLSearchParams(location.search).get("id");
  return id && fetch(`./live/runs/${encodeURIComponent(id)}/summary`, { cache: "no-store" });
})();
</script>
""",
}
RUN_PAGE = ("run", "Run", "ddp-run")
# The alternative form of the Train page.
SCRIPT_PAGE = ("script", "Run my script", "ddp-script")
# The target of the first page's skip link.
FORM = "ddp-form"
# The page of a poll on a phone, without links to other pages.
POLL_PAGE = ("poll", "Poll", "ddp-poll")
# The page for an unknown URL.
NOT_FOUND = "not-found"
# Modules of pages whose module is not PATH/page.js.
MODULES = {POLL_PAGE[0]: "learn/polls/page.js"}
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_IMPORTED = re.compile(r'from "(\.[\w./]+)"')
# Pages that belong to a page in the navigation.
SECTIONS = {RUN_PAGE[0]: "runs", SCRIPT_PAGE[0]: ""}
NAVIGATION = (("", "Train"), *((path, name) for path, name, _ in PAGES))


def make_router() -> APIRouter:
    """Return the routes of the pages."""
    router = APIRouter()
    for path, name, element_id in (*PAGES, QUEUE_PAGE, RUN_PAGE, SCRIPT_PAGE, POLL_PAGE):
        # The query has no effect: the page is always the same.
        policy = front.own_page_policy(_INLINE.findall(EARLY.get(path, "")))
        router.add_api_route(
            f"/{path}", _serve_page(page(name, path, element_id), policy), include_in_schema=False
        )
    return router


def _serve_page(body: str, policy: str) -> Callable[[], HTMLResponse]:
    def show() -> HTMLResponse:
        return HTMLResponse(body, headers={"Cache-Control": "no-cache", "Content-Security-Policy": policy})

    return show


def head(*, has_charts: bool = False) -> str:
    """Return the head of every page, including Gradio's. The page's scripts run before Plotly is compiled."""
    plotly = f'<link rel="preload" as="script" href="./live/plotly.min.js?v={plotly_version()}">\n'
    links = "\n".join(f'<link rel="stylesheet" href="./live/assets/css/{name}.css">' for name in STYLES)
    return f"""{typeface_preload()}
{links}
<link rel="icon" href="./live/assets/icons/favicon.svg">
<script src="./live/assets/js/first.js"></script>
<script type="module" src="./live/assets/js/main.js"></script>
{plotly if has_charts else ""}"""


def typeface_preload() -> str:
    """Return the link that preloads the typeface before any style sheet requests it."""
    return f'<link rel="preload" as="font" type="font/woff2" href="./{TYPEFACE}" crossorigin>'


def preloads(path: str) -> str:
    """Return preload links for all modules of a page, which otherwise load one import after the other."""
    pending, modules = ["main.js", MODULES.get(path, f"{path}/page.js")], dict[str, None]()
    while pending:
        name = pending.pop()
        script = ASSETS / "js" / name
        if name not in modules and script.is_file():
            modules[name] = None
            imported = _IMPORTED.findall(script.read_text(encoding="utf-8"))
            pending += [
                posixpath.normpath(posixpath.join(posixpath.dirname(name), import_path))
                for import_path in imported
            ]
    return "\n".join(f'<link rel="modulepreload" href="./live/assets/js/{name}">' for name in modules)


def navigation(current: str) -> str:
    """Return the navigation; `current` is the path of the page that contains it."""
    marks = {SECTIONS.get(current): " aria-current=true", current: " aria-current=page"}
    links = "".join(f'<a href="./{path}"{marks.get(path, "")}>{name}</a>' for path, name in NAVIGATION)
    # Offer the tour to first-time visitors of the first page.
    tour = "ddp-tour" if current == "" else "ddp-no-tour"
    # Add the skip link only to the first page, which Gradio lays out; all other pages already have one.
    skip = f'<a class="ddp-skip" href="#{FORM}">Skip to the form</a>' if current == "" else ""
    return f"""{skip}<nav class="ddp-nav" aria-label="Pages"><span class="ddp-brand">Rankscope</span>{links}
<span id="ddp-nav-queue" data-current="{str(current == QUEUE_PAGE[0]).lower()}"></span>
<span class="ddp-nav-end" id="{tour}"></span><span id="ddp-nav-end"></span></nav>"""


def not_found_page(path: str) -> HTMLResponse:
    """Return the page for an unknown URL; `path` does not contain the prefix of a proxy."""
    content = """<div class="ddp ddp-nothing"><h1>This page does not exist.</h1>
<p>Find your runs under <a href="./runs">Runs</a>, or start a run under <a href="./">Train</a>.</p></div>"""
    # The links of every page are relative to the root.
    base = f'<base href="{"../" * (path.count("/") - 1)}./">'
    body = page("Not found", NOT_FOUND, "ddp-not-found", content, base)
    policy = {front.POLICY_HEADER.decode(): front.own_page_policy()}
    return HTMLResponse(body, status_code=404, headers=policy)


def page(name: str, path: str, element_id: str, content: str = "", base: str = "") -> str:
    """Return a page with `content`, or with an empty element that a script fills.

    Args:
        base: HTML base element; if given, the page has no skip link, because that link is relative.
    """
    skip = "" if base else f'<a class="ddp-skip" href="#{element_id}">Skip to the page</a>'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">{base}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} · {TITLE}</title>
{EARLY.get(path, "")}{preloads(path)}
{head(has_charts=path == RUN_PAGE[0])}
</head>
<body class="ddp-own-page">
{skip}
{navigation(path) if path != POLL_PAGE[0] else ""}
<main><div id="{element_id}" tabindex="-1">{content}</div>
<noscript>This page needs JavaScript. Please allow scripts for this page.</noscript></main>
</body>
</html>
"""
