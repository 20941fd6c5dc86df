"""What a checker finds on a node, tried on this one."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from dljob.runtime.node import node_checks
from dljob.runtime.node.node_checks import CheckRequest, Meet, NotMadeError, compute, disks, kind_of, listen, look, meet

GIB = 2**30


def order(**more):
    return CheckRequest(**{"node": "n", "backend": "gloo", "memory": 0, "paths": (), "devices": (), **more})


def test_an_address_of_this_machine_can_be_listened_on_and_another_cannot():
    assert node_checks.ports("127.0.0.1") == ""
    assert node_checks.ports("192.0.2.1").startswith("a process cannot listen on 192.0.2.1")


def test_a_folder_that_is_not_there_yet_is_as_free_as_the_one_above_it(tmp_path):
    made = list(disks((str(tmp_path), str(tmp_path / "a" / "b"), "/proc/1/nothing/here")))
    assert [disk.path for disk in made][:2] == [str(tmp_path), str(tmp_path / "a" / "b")]
    assert made[0].free == pytest.approx(made[1].free, rel=0.2)
    assert made[0].free > 0


def test_the_devices_say_what_is_computed_with():
    assert kind_of(()) == kind_of((("GPU", ()),)) == kind_of((("licence", ("1",)),)) == "cpu"
    assert kind_of((("licence", ("1",)), ("GPU", ("0",)))) == "cuda"
    assert kind_of((("NPU", ("0",)),)) == "npu"


def test_without_torch_devices_and_network_cannot_be_checked(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    facts = look(order(), "127.0.0.1")
    assert facts.unmade.startswith("no check of devices and network: import of torch")
    assert facts.trouble == ""


def test_an_npu_without_its_package_cannot_be_checked(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    with pytest.raises(NotMadeError, match="torch_npu"):
        compute(order(devices=(("NPU", ("0",)),)))


@pytest.mark.parametrize("hip", [None, "6.0"])
def test_a_torch_without_cuda_is_not_the_nodes_fault(monkeypatch, hip):
    cuda = SimpleNamespace(device_count=lambda: 0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(cuda=None, hip=hip), cuda=cuda))
    wanted = order(devices=(("GPU", ("0", "1")),))
    if hip is None:
        with pytest.raises(NotMadeError, match="without CUDA"):
            compute(wanted)
    else:
        assert compute(wanted)[2] == "the role has 2 cuda devices here, torch sees 0"


def test_the_role_sees_its_own_devices_only(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setenv("DLJOB_CHECKPOINT", "/ckpt")
    monkeypatch.setattr(node_checks, "compute", lambda order: ("H x 2", 9.0, ""))
    facts = look(order(devices=(("GPU", ("2", "3")),), memory=GIB, paths=("/",)), "127.0.0.1")
    assert node_checks.os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert (facts.shape, facts.gflops, facts.memory_wanted) == ("H x 2", 9.0, GIB)
    assert facts.memory_free
    assert [disk.path for disk in facts.disks] == ["/", "/ckpt"]


def test_a_device_that_fails_is_named(monkeypatch):
    def product(device, module):
        if device.index == 1:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nand so on")
        return 5.0

    torch = SimpleNamespace(device=lambda kind, index: SimpleNamespace(type=kind, index=index))
    cuda = SimpleNamespace(device_count=lambda: 2, get_device_name=lambda _: "H")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(node_checks, "_module", lambda kind: cuda)
    monkeypatch.setattr(node_checks, "_product", product)
    found = compute(order(devices=(("GPU", ("0", "1")),)))
    assert found[2] == "cuda device 1: CUDA error: uncorrectable ECC error encountered"
    assert compute(order(devices=(("GPU", ("0",)),))) == ("H x 1", 5.0, "")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")
def test_a_processor_multiplies_and_reduces():
    shape, gflops, trouble = compute(order())
    assert shape
    assert gflops > 0
    assert trouble == ""
    listener = listen("127.0.0.1")
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert meet(Meet("gloo", "cpu", 0, 1, address, 20.0), listener) == 0.0, "alone nothing is sent"
