"""The frame of our pages, and the pages without Gradio, which the browser renders itself.

They are plain HTML with an element that a script fills, so that opening a run takes a fraction of a second.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ddp_gui.http import policies, static
from trainers.files.paths import ASSETS

TITLE = "DDP, live"
STYLES = (
    "shared/colours",
    "shared/gradio",
    "shared/base",
    "shared/controls",
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
    "run/logs",
    "run/page",
    "run/closer",
    "run/theatre",
    "run/projector",
    "runs/live_strip",
    "machine/page",
    "runs/page",
    "queue/page",
    "learn/page",
    "learn/polls",
    "auth/person",
    "train/terms",
    "shared/print",
)
# Each page: its address, its name in the navigation, and the element that a script fills.
PAGES = (
    ("runs", "Runs", "ddp-runs"),
    ("machine", "Machine", "ddp-machine"),
    ("learn", "Learn", "ddp-learn"),
)
# Its link is shown if runs are queued or there is a login: a script checks that.
QUEUE_PAGE = ("queue", "Queue", "ddp-queue")
# Fetched with the page, not after all of its scripts: the list may be long.
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
# Where the skip link of the first page leads.
FORM = "ddp-form"
# What phones see of a poll: the question, and no way to other pages.
POLL_PAGE = ("poll", "Poll", "ddp-poll")
# Where a page's own module is not PATH/page.js.
MODULES = {POLL_PAGE[0]: "learn/polls/page.js"}
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_IMPORTED = re.compile(r'from "(\.[\w./]+)"')
NAVIGATION = (("", "Train"), *((path, name) for path, name, _ in PAGES))


def make_router() -> APIRouter:
    """Return the routes of the pages."""
    router = APIRouter()
    for path, name, place in (*PAGES, QUEUE_PAGE, RUN_PAGE, POLL_PAGE):
        # The query has no effect here: the page is always the same.
        policy = policies.own_page(_INLINE.findall(EARLY.get(path, "")))
        router.add_api_route(f"/{path}", _always(page(name, path, place), policy), include_in_schema=False)
    return router


def _always(body: str, policy: str) -> Callable[[], HTMLResponse]:
    def show() -> HTMLResponse:
        return HTMLResponse(body, headers={"Cache-Control": "no-cache", "Content-Security-Policy": policy})

    return show


def head(*, has_charts: bool = False) -> str:
    """Return the head of every page, Gradio's too; our scripts begin before Plotly is compiled."""
    plotly = f'<link rel="preload" as="script" href="./live/plotly.min.js?v={static.plotly_version()}">\n'
    links = "\n".join(f'<link rel="stylesheet" href="./live/assets/css/{name}.css">' for name in STYLES)
    return f"""{typeface_preload()}
{links}
<link rel="icon" href="./live/assets/icons/favicon.svg">
<script src="./live/assets/js/first.js"></script>
<script type="module" src="./live/assets/js/main.js"></script>
{plotly if has_charts else ""}"""


def typeface_preload() -> str:
    """Return the link that fetches the typeface before any style names it."""
    return f'<link rel="preload" as="font" type="font/woff2" href="./{static.TYPEFACE}" crossorigin>'


def preloads(path: str) -> str:
    """Return preload links for all of a page's modules, which otherwise load one import after the other."""
    wanted, found = ["main.js", MODULES.get(path, f"{path}/page.js")], dict[str, None]()
    while wanted:
        name = wanted.pop()
        script = ASSETS / "js" / name
        if name not in found and script.is_file():
            found[name] = None
            imported = _IMPORTED.findall(script.read_text(encoding="utf-8"))
            wanted += [posixpath.normpath(posixpath.join(posixpath.dirname(name), way)) for way in imported]
    return "\n".join(f'<link rel="modulepreload" href="./live/assets/js/{name}">' for name in found)


def navigation(current: str) -> str:
    """Return the links between the pages; `current` is the address of the one they are on."""
    links = "".join(
        f'<a href="./{path}"{" aria-current=page" if path == current else ""}>{name}</a>'
        for path, name in NAVIGATION
    )
    # The tour is for first-time visitors of the first page.
    tour = "ddp-tour" if current == "" else "ddp-no-tour"
    # Gradio lays out the first page; on all others it stands before the navigation, too.
    skip = f'<a class="ddp-skip" href="#{FORM}">Skip to the form</a>' if current == "" else ""
    return f"""{skip}<nav class="ddp-nav" aria-label="Pages"><span class="ddp-brand">DDP, live</span>{links}
<span id="ddp-nav-queue" data-current="{str(current == QUEUE_PAGE[0]).lower()}"></span>
<span class="ddp-nav-end" id="{tour}"></span><span id="ddp-nav-end"></span></nav>"""


def page(name: str, path: str, place: str) -> str:
    """Return a page with a place for a script to fill."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} · {TITLE}</title>
{EARLY.get(path, "")}{preloads(path)}
{head(has_charts=path == RUN_PAGE[0])}
</head>
<body class="ddp-own-page">
<a class="ddp-skip" href="#{place}">Skip to the page</a>
{navigation(path) if path != POLL_PAGE[0] else ""}
<main><div id="{place}" tabindex="-1"></div>
<noscript>This page is drawn by a script: please allow scripts for it.</noscript></main>
</body>
</html>
"""
