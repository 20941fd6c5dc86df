"""A job's page: one self-contained HTML file, made of its data and of the files in `assets`."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters that could end or break the script element around the data; within JSON they occur in strings alone."""


def html(data: Mapping[str, Any]) -> str:
    """Return the page; its Content-Security-Policy allows its own script and style only, and no request."""
    assets = files("dljob.report") / "assets"
    script, style = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:"
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(ESCAPES)
    parts = {"policy": policy, "style": style, "script": script, "data": text}
    page = assets.joinpath("page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        before, _, after = page.partition(f"{{{{{name}}}}}")
        page = before + part + after
    return page


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
