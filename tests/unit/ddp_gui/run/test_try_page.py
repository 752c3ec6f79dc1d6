"""Tests of try.html without a browser: its contents, and models for which there can be no page."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.run import try_page
from ddp_gui.run.try_page import NoPageError

ABOUT: dict[str, Any] = {"input": {"kind": "image"}, "output": {"class_names": ["</script><b>", "1"]}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"onnx" * 100)
    return path


def test_the_page_holds_the_model_its_description_and_the_runtime(model: Path) -> None:
    page = try_page.try_page("<a run>", ABOUT, model).decode()
    held = dict(re.findall(r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>', page))
    assert gzip.decompress(base64.b64decode(held["model"])) == model.read_bytes()
    runtime = gzip.decompress(base64.b64decode(held["runtime"]))
    assert b"ONNX Runtime Web v1.30.0" in runtime[:200] and b"MIT License" in runtime[:200]
    assert gzip.decompress(base64.b64decode(held["runtime-wasm"]))[:4] == b"\0asm"
    found = re.search(r'<script type="application/json" id="about">(.*)</script>', page)
    assert found is not None and json.loads(found[1]) == ABOUT
    assert "<title>&lt;a run&gt;</title>" in page
    assert page.count("</script>") == page.count("<script")
    assert "@font-face" not in page and 'src="' not in page and "<link" not in page
    assert "MIT License" in (try_page.RUNTIME / "LICENSE.txt").read_text()


def test_a_model_that_is_too_large_or_needs_a_tokenizer_is_no_page(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"input": {"kind": "text", "tokenizer": {"kind": "pretrained"}}}
    with pytest.raises(NoPageError, match="the tokenizer of a pretrained model does not run"):
        try_page.try_page("a", about, model)
    monkeypatch.setattr(try_page, "MAX_BYTES", 10**6)
    with pytest.raises(NoPageError, match="it would have 5 MB; the limit is 1 MB"):
        try_page.try_page("a", ABOUT, model)
