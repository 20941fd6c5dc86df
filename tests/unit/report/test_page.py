"""A job's page is one file: its data cannot end its script, and its policy allows its own script and style alone."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from dljob.report.page import html

NASTY = {"job": {"name": "</script><script>alert(1)</script>", "phase": "{{data}}\u2028<!--&"}}


def test_data_cannot_end_its_element_and_reads_back_equal() -> None:
    page = html(NASTY)
    assert page.count("</script>") == 2
    data = re.search(r'<script type="application/json" id="data">(.*)</script>', page)
    assert data
    assert json.loads(data[1]) == NASTY


def test_policy_allows_its_own_script_and_style_alone() -> None:
    page = html(NASTY)
    for element in ("script", "style"):
        text = re.search(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        assert text
        digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_a_live_page_alone_may_ask_its_server() -> None:
    assert "connect-src" not in html({"job": {}}).partition("</head>")[0].partition("<title>")[0]
    assert "; connect-src 'self'" in html({"job": {}, "source": "data"})


def test_scripts_are_joined_in_the_order_of_their_names() -> None:
    page = html({})
    assert (
        0 < page.index("function visible(") < page.index("class TimeChart") < page.index('("DOMContentLoaded", start)')
    )


def test_a_page_is_at_most_400_kb_beside_its_data() -> None:
    assert len(html({}).encode()) <= 400_000
