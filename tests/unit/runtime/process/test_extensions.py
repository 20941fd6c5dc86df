"""What others add by entry point: found in the folder of user code and among what is installed, or refused by name."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.errors import UsageError
from dljob.plan.plan import plan
from dljob.runtime.process import extensions
from dljob.runtime.process.messages import OutcomeError
from dljob.runtime.worker.sub_master import SubMaster
from dljob.runtime.worker.sub_master_host import SubMasterHost
from dljob.spec.loading.load import parse

RING = {"name": "ring", "type": "Elastic", "entrypoint": {"class": "m.A"}, "comm": {"subMaster": "ring"}}
CODE = """
from dljob import SubMaster

class Ring(SubMaster):
    def setup(self):
        self.begun = []
        if self.config.get("broken"):
            raise OSError("no room for a ring")
    def address(self):
        return self.config.get("at", "here:1")
    def begin(self, generation, world_size):
        if world_size > self.config.get("most", 9):
            raise ConnectionError("a peer is silent")
        self.begun.append((generation, world_size))

NoClass = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that holds a package of somebody else's, as pip would have installed it there."""
    (tmp_path / "ringed.py").write_text(CODE)
    info = tmp_path / "ringed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ringed\nVersion: 1\n")
    points = "ring = ringed:Ring\nodd = ringed:NoClass\nlost = ringed:Gone\n"
    (info / "entry_points.txt").write_text(f"[{extensions.SUB_MASTERS}]\n{points}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("ringed", None)


def spec(role: dict[str, Any], **more: Any) -> Any:
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}}
    return parse({**head, "spec": {"roles": [role], **more}})


def host(folder: Path, name: str = "ring", **config: Any) -> Any:
    """A SubMasterHost without Ray's part of it."""
    role = plan(spec({**RING, "comm": {"subMaster": name}}, config=config)).roles["ring"]
    made: Any = object.__new__(SubMasterHost)
    job = SimpleNamespace(code_dir=str(folder), uid="0" * 32, roles=(("ring", 1),))
    made._init_own(SimpleNamespace(role=role, job=job))
    return made


def order(generation: int, size: int) -> Any:
    return SimpleNamespace(generation=generation, world_size=size)


def test_an_extension_in_the_folder_of_the_code_is_found_and_one_that_is_nowhere_is_refused(package):
    extensions.check(spec(RING).spec, str(package))
    with pytest.raises(UsageError, match=r"role ring: the SubMaster 'ring' is not installed; installed: none") as error:
        extensions.check(spec(RING).spec, "")
    assert "dljob.submasters" in str(error.value.hint)
    other = spec({**RING, "comm": {"subMaster": "rign"}}).spec
    with pytest.raises(UsageError, match="'rign' is not installed; installed: lost, odd, ring"):
        extensions.check(other, str(package))


def test_a_sub_master_is_told_of_each_generation_once_before_its_ranks_start(package):
    sub_master_host = host(package)
    assert sub_master_host.address() == "here:1"
    for generation, size in ((1, 3), (1, 3), (2, 2)):
        sub_master_host.start_ranks(order(generation, size))
    assert sub_master_host._sub_master.begun == [(1, 3), (2, 2)]
    assert sub_master_host._sub_master.role == "ring"


@pytest.mark.parametrize(
    ("config", "error", "words", "frame"),
    [
        ({"broken": True}, "OSError", "no room for a ring (in setup)", "ringed.py:8 in setup"),
        ({"at": "nowhere"}, "UsageError", "Ring.address() returned 'nowhere'", ""),
        ({"at": None}, "UsageError", "Ring.address() returned 'None'", ""),
        ({"name": "odd"}, "UsageError", "the SubMaster 'odd' is 3", ""),
        ({"name": "lost"}, "AttributeError", "no attribute 'Gone'", ""),
        ({"name": "none"}, "UsageError", "'none' is not installed", ""),
    ],
)
def test_a_broken_sub_master_tells_its_line_in_its_first_answer_and_need_not_be_tried_again(
    package, config, error, words, frame
):
    with pytest.raises(OutcomeError) as caught:
        host(package, **config).address()
    outcome = caught.value.outcome
    assert (outcome.error_type, outcome.frame, outcome.fatal) == (error, frame, True)
    assert words in outcome.message
    assert f"{error}: " in outcome.detail


def test_a_sub_master_that_a_peer_keeps_waiting_may_be_tried_again(package):
    sub_master_host = host(package, most=2)
    with pytest.raises(OutcomeError) as caught:
        sub_master_host.start_ranks(order(1, 3))
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (copy.outcome.error_type, copy.outcome.frame) == ("ConnectionError", "ringed.py:13 in begin")
    assert (copy.outcome.message, copy.outcome.fatal) == ("a peer is silent (in begin)", False)
    sub_master_host.start_ranks(order(1, 2))
    assert sub_master_host._sub_master.begun == [(1, 2)]


def test_the_base_class_says_what_a_sub_master_must_have():
    own = SubMaster()
    own.setup()
    own.begin(1, 2)
    with pytest.raises(NotImplementedError, match=r"SubMaster.address\(\) must return where it serves"):
        own.address()


def test_a_role_with_a_sub_master_is_a_world_without_torch():
    role = plan(spec(RING)).roles["ring"]
    assert (role.uses_store, role.comm_backend, role.rejoins) == (True, None, False)
    assert plan(spec({**RING, "comm": {}})).digest != plan(spec(RING)).digest


def test_a_sub_master_beside_a_process_group_is_refused():
    from dljob.errors import SpecError

    with pytest.raises(SpecError, match="has the SubMaster ring in the place of torch's store"):
        spec({**RING, "comm": {"subMaster": "ring", "backend": "gloo"}})
