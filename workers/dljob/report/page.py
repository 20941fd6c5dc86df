"""A job's page: one self-contained HTML file, made of its data and of the files in `assets`."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, cast

ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters that could end or break the script element around the data; within JSON they occur in strings alone."""
ASSETS = files("dljob.report") / "assets"


def html(data: Mapping[str, Any]) -> str:
    """Return the page; its Content-Security-Policy allows its own script and style only.

    A page with a `source` may ask the server that it came from; any other page makes no request at all.
    The number in a script's name is its place: a script uses what those before it define.
    """
    script, style = _script(), _style()
    text = to_json(data).translate(ESCAPES)
    parts = {"policy": policy(live=bool(data.get("source"))), "style": style, "script": script, "data": text}
    page = (ASSETS / "page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        before, _, after = page.partition(f"{{{{{name}}}}}")
        page = before + part + after
    return page


def to_json(data: Mapping[str, Any]) -> str:
    """Return the JSON of a page's data. NaN and infinity, which a browser's parser refuses, become null."""
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:  # in a loss of the user's, or in a damaged file
        return json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"))


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in cast("Sequence[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def policy(*, live: bool) -> str:
    """Return the page's Content-Security-Policy; a `live` page may ask the command that serves it."""
    rules = f"default-src 'none'; script-src '{_digest(_script())}'; style-src '{_digest(_style())}'; img-src data:"
    return f"{rules}; connect-src 'self'" if live else rules


def _script() -> str:
    scripts = sorted((file for file in ASSETS.iterdir() if file.name.endswith(".js")), key=lambda file: file.name)
    return "".join(file.read_text(encoding="utf-8") for file in scripts)


def _style() -> str:
    return (ASSETS / "page.css").read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
