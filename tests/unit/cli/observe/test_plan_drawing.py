"""plan -o svg: a self-contained drawing of machines, their devices and ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dljob.cli import main
from dljob.cli.plan_drawing import CARDS, CELL, WIDTH, draw

GOLDEN = Path(__file__).parents[3] / "golden" / "plan"
SVG = "{http://www.w3.org/2000/svg}"


def data(sample: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{sample}.json").read_text())


def drawn(said: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(draw(said))  # noqa: S314 - our own text


def texts(picture: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in picture.iter(f"{SVG}text")]


@pytest.mark.parametrize("sample", sorted(path.stem for path in GOLDEN.glob("*.json")))
def test_every_sample_is_a_picture_that_names_roles_and_machines(sample):
    said = data(sample)
    shown = " ".join(texts(drawn(said)))
    assert all(role["name"] in shown for role in said["roles"])
    assert said["nodes"][0]["id"] in shown
    assert said["nodes"][-1]["id"] in shown


def test_a_shared_device_is_divided_among_the_ranks_that_hold_it():
    picture = drawn(data("ppo-llama8b"))
    held = {one.findtext(f"{SVG}title"): float(one.get("width", 0)) for one in picture.iter(f"{SVG}rect")
            if one.find(f"{SVG}title") is not None}  # fmt: skip
    assert held["actor/0: 0.4 GPU"] == pytest.approx(0.4 * CELL)
    assert held["critic/0: 0.2 GPU"] == pytest.approx(0.2 * CELL)


def test_equal_machines_are_one_card_and_their_ranks_are_named_by_role():
    shown = texts(drawn(data("ppo-llama8b")))
    assert {"train-0 … train-1", "group train, first of 2 alike", "actor 0-7", "rollout/3"} <= set(shown)


def plan(nodes: int, **node: Any) -> dict[str, Any]:
    """A plan of machines that hold a rank each, none like the next."""
    role: dict[str, Any] = {"name": "w", "type": "Actor", "driver": True, "replicas": nodes, "eachRank": {}}
    units = [{"name": f"w/{n}", "bundles": [{"ranks": [f"w/{n}"]}]} for n in range(nodes)]
    made = [{"id": f"n{n}", "group": None, "units": [f"w/{n}"], "left": {"CPU": str(n)}, **node} for n in range(nodes)]
    return {"name": "j", "roles": [role], "units": units, "nodeGroups": [], "nodes": made}


def test_of_thousands_of_machines_the_first_are_drawn_and_the_rest_counted():
    shown = texts(drawn(plan(1000)))
    assert f"... and {1000 - CARDS} machines: dljob plan shows all" in shown
    assert sum(text.startswith("left: ") for text in shown) == CARDS


def test_an_idle_machine_and_devices_of_no_group_are_drawn():
    said = plan(2)
    said["nodes"][0] |= {"units": [], "left": {}}
    said["roles"][0]["eachRank"] = {"GPU": "40"}
    shown = texts(drawn(said))
    assert {"no ranks", "40 GPU"} <= set(shown)


def test_names_cannot_leave_their_text_or_the_picture():
    said = json.loads(json.dumps(plan(1)).replace("w", 'w\\u0007<script>&\\"]]>' + "w" * 300))
    said["name"] = "</text><script>" * 20
    picture = draw(said)
    assert "<script" not in picture
    assert all(len(text) * 5 < WIDTH for text in texts(ElementTree.fromstring(picture)))  # noqa: S314 - our own text


def test_the_picture_needs_nothing_from_elsewhere():
    picture = draw(data("grpo-ascend"))
    assert re.findall(r"https?://[^\"]*", picture) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(script|image|foreignObject|use)|@import|url\(|href", picture)


def test_the_command_prints_the_picture(capsys):
    example = Path(__file__).parents[4] / "examples" / "hello-cpu" / "dljob.yaml"
    assert main.run(["plan", str(example), "-o", "svg"]) == 0
    assert ElementTree.fromstring(capsys.readouterr().out).tag == f"{SVG}svg"  # noqa: S314 - our own text
