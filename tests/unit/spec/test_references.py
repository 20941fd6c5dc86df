"""References to endpoints in texts: replaced where they stand, and nothing else is touched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dljob.spec.references import expanded, referred

LINES = {"rollout": "h:1,h:2", "a-b": "h:3"}


def test_references_are_replaced_and_all_else_stays() -> None:
    said = {
        "--servers={{roles.rollout.endpoints}}": "--servers=h:1,h:2",
        "{{roles.a-b.endpoints}}{{roles.rollout.endpoints}}": "h:3h:1,h:2",
        "{{{{roles.rollout.endpoints}}": "{{roles.rollout.endpoints}}",
        "{{{{ x }}}}": "{{ x }}}}",
        "{{ roles.rollout.endpoints }} {x} ${y} {{other}}": "{{ roles.rollout.endpoints }} {x} ${y} {{other}}",
        "{{roles.gone.endpoints}}": "",
    }
    assert {text: expanded(text, LINES) for text in said} == said


def test_texts_at_any_depth_of_a_config_are_read() -> None:
    config = {"a": [1, "{{roles.rollout.endpoints}}", ("x", None)], "b": {"c": "{{roles.a-b.endpoints}}"}}
    assert expanded(config, LINES) == {"a": [1, "h:1,h:2", ("x", None)], "b": {"c": "h:3"}}
    assert list(referred(config)) == ["rollout", "a-b"]
    assert list(referred("{{{{roles.rollout.endpoints}}")) == []
    assert list(referred(3)) == []


@given(st.text())
def test_any_text_can_be_written(text: str) -> None:
    # Pairs of braces are doubled from the left, as they are halved.
    assert expanded(text.replace("{{", "{{{{"), LINES) == text
