"""A relauncher of somebody else's: found by entry point, told of nodes in turn, and never the end of the job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dljob.errors import UsageError
from dljob.master.state.actions import RelaunchNode
from dljob.runtime.controller import relauncher
from dljob.runtime.controller.relauncher import BadNode, NodeRelauncher, Relaunching
from dljob.runtime.process import extensions
from dljob.spec.loading.load import parse

CODE = """
import time
from dljob import NodeRelauncher

TOLD = []

class Cloud(NodeRelauncher):
    def relaunch(self, node):
        TOLD.append((id(self), node))
        if node.reason == "slow":
            time.sleep(0.5)
        if node.reason == "broken":
            raise OSError("no quota")
"""
FROZEN = RelaunchNode("n1", "NodeFrozen", "node n1 has not answered for 3.0 s", (("rack", "a"),))


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, BadNode]]]:
    """What the relauncher of an installed package was told."""
    (tmp_path / "clouded.py").write_text(CODE)
    info = tmp_path / "clouded-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clouded\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{extensions.RELAUNCHERS}]\ncloud = clouded:Cloud\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__("clouded").TOLD
    sys.modules.pop("clouded", None)


async def test_one_relauncher_object_is_told_of_each_bad_node(cloud):
    told = Relaunching("cloud")
    assert await told.tell(FROZEN) == ""
    assert await told.tell(FROZEN) == ""
    assert [node for _, node in cloud] == [BadNode("n1", "NodeFrozen", FROZEN.explanation, {"rack": "a"})] * 2
    assert len({own for own, _ in cloud}) == 1


async def test_an_error_or_a_timeout_of_the_relauncher_is_told_in_words(cloud, monkeypatch):
    told = Relaunching("cloud")
    assert await told.tell(RelaunchNode("n", "broken", "")) == (
        f"the relauncher 'cloud' failed: OSError: no quota at {sys.modules['clouded'].__file__}:13 in relaunch"
    )
    assert "is not installed; installed: cloud" in await Relaunching("clod").tell(FROZEN)
    assert len(cloud) == 1
    monkeypatch.setattr(relauncher, "ANSWER_S", 0.05)
    words = await told.tell(RelaunchNode("n", "slow", ""))
    assert words == "the relauncher 'cloud' did not take the order within 0.05 s"


def test_a_name_that_is_not_installed_is_refused_before_the_start(cloud):
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}}
    roles = [{"name": "a", "entrypoint": {"class": "m.A"}}]
    for name in ("cloud", "clod"):
        spec = parse({**head, "spec": {"roles": roles, "faultTolerance": {"node": {"relauncher": name}}}}).spec
        if name == "cloud":
            extensions.check(spec, "")
            continue
        with pytest.raises(UsageError, match="the relauncher 'clod' is not installed; installed: cloud"):
            extensions.check(spec, "")


def test_the_base_class_says_what_is_missing():
    with pytest.raises(NotImplementedError, match=r"NodeRelauncher.relaunch\(\) is to replace node n1"):
        NodeRelauncher().relaunch(BadNode("n1", "NodeLost", "", {}))
