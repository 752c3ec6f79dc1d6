"""The first start in a browser: the progress turns into the page, and a failure is shown with its reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, expect

# Waits for a line between two steps, so that each is seen.
INSTALLS = """
import http.server, sys
print('Download: 200 MB from example, then about 100 MB of other packages by pip.', flush=True)
print('torch: 50 of 200 MB', flush=True)
open(sys.argv[1]).read()
server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
print(f'The page is at http://127.0.0.1:{server.server_port}/app  (', flush=True)
server.serve_forever()
"""
FAILS = "print('The disk is full: 3 MB are free.'); raise SystemExit(1)"
STARTS = (
    "import sys; from rankscope import first_start; first_start.is_open = lambda port: False; "
    "sys.exit(first_start.start([sys.executable, '-c', *sys.argv[1:]], opens_browser=False))"
)


@contextmanager
def started(*program: str) -> Iterator[str]:
    """Start a program, and yield the address of its progress until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS, *program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate()


def test_the_progress_turns_into_the_page(browser: Browser, tmp_path) -> None:
    gate = tmp_path / "gate"
    subprocess.run(["mkfifo", gate], check=True)
    with started(INSTALLS, str(gate)) as address:
        page = browser.new_page()
        page.goto(address)
        expect(page.get_by_role("heading")).to_have_text("Downloading torch")
        expect(page.get_by_text("50 of about 300 MB downloaded")).to_be_visible()
        expect(page.locator("#announced")).to_contain_text("about 100 MB of other packages by pip")
        assert page.get_by_role("progressbar").evaluate("bar => bar.position") == 50 / 300
        gate.write_text("")
        page.wait_for_url("**/app")
        page.close()


def test_a_failure_is_shown_with_its_reason(browser: Browser) -> None:
    with started(FAILS) as address:
        page = browser.new_page()
        page.goto(address)
        expect(page.get_by_role("heading")).to_have_text("Rankscope did not start")
        expect(page.locator("#amount")).to_have_text("The disk is full: 3 MB are free.")
        expect(page.locator("#lines")).to_be_visible()
        page.close()
