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
ASSETS = files("dljob.report") / "assets"


def html(data: Mapping[str, Any]) -> str:
    """Return the page; its Content-Security-Policy allows its own script and style only.

    A page with a `source` may ask the server that it came from; any other page makes no request at all.
    The number in a script's name is its place: a script uses what those before it define.
    """
    script, style = _script(), _style()
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(ESCAPES)
    parts = {"policy": policy(live=bool(data.get("source"))), "style": style, "script": script, "data": text}
    page = (ASSETS / "page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        before, _, after = page.partition(f"{{{{{name}}}}}")
        page = before + part + after
    return page


def policy(*, live: bool) -> str:
    """Return the page's Content-Security-Policy; a `live` page may ask the command that serves it."""
    own = f"default-src 'none'; script-src '{_digest(_script())}'; style-src '{_digest(_style())}'; img-src data:"
    return f"{own}; connect-src 'self'" if live else own


def _script() -> str:
    scripts = sorted((file for file in ASSETS.iterdir() if file.name.endswith(".js")), key=lambda file: file.name)
    return "".join(file.read_text(encoding="utf-8") for file in scripts)


def _style() -> str:
    return (ASSETS / "page.css").read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
