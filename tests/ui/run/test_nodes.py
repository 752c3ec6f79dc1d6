"""Ranks of several machines: one expandable row per machine, with its host and its slowest rank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.ui.run.written_runs import NUM_NODES, RANKS_A_NODE, run_of_nodes
from tools.page_driver import Server


def test_a_row_a_machine_opens_and_names_what_stands_out(runs_dir: Path, server: Server, page: Page) -> None:
    run_id = run_of_nodes(runs_dir / "nodes-1").run_id
    page.goto(f"{server.address}/run?id={run_id}")
    expect(page.get_by_text(f"CPU ranks on {NUM_NODES} machines")).to_be_visible()
    for region, mark in (("Every CPU rank", "least busy"), ("What each rank does", "slowest")):
        part: Any = page.get_by_role("region", name=region)
        rows = part.locator("details.ddp-node")
        expect(rows).to_have_count(NUM_NODES)
        standing_out = rows.nth(1).locator("summary")
        expect(standing_out).to_contain_text("node 1 (pc1)")
        expect(standing_out).to_contain_text(f"rank {RANKS_A_NODE + 2}")
        expect(standing_out).to_contain_text(mark)
        expect(rows.nth(0).locator("summary em")).to_have_text("")
        # Only the ranks of the first machine are rendered until another row is opened.
        expect(rows.nth(0).get_by_text("rank 1", exact=True)).to_be_visible()
    devices: Any = page.get_by_role("region", name="Every CPU rank")
    expect(devices.locator("article")).to_have_count(RANKS_A_NODE)
    rows = devices.locator("details.ddp-node")
    rows.nth(1).locator("summary").click()
    expect(devices.locator("article")).to_have_count(2 * RANKS_A_NODE)
    expect(rows.nth(1).get_by_text("rank 10", exact=True)).to_be_visible()
    curve = rows.nth(1).locator(".ddp-curve-line").first
    expect(curve).to_have_attribute("d", re.compile("^M"))
