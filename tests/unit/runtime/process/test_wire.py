"""What cannot travel is refused where it is sent: too large, or a reference of Ray."""

from __future__ import annotations

import pickle
from typing import Any, cast

import numpy as np
import pytest
import ray

from dljob.errors import UsageError
from dljob.linux import memory_limit
from dljob.runtime.checkpoint.pack import pack
from dljob.runtime.process import wire


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which 7 MiB are free, and arrays of 1 MiB count as huge."""
    monkeypatch.setattr(memory_limit, "free", lambda: (7 << 20, "in this container"))
    monkeypatch.setattr(wire, "HUGE", 1 << 20)


def array(mib: float) -> Any:
    return np.zeros(int(mib * 2**20), dtype=np.uint8)


@pytest.mark.parametrize("value", [array(2), ((array(2),), {}), ((), {"deep": [{"x": array(2)}]})])
def test_an_array_whose_copies_do_not_fit_is_refused_in_words(value):
    with pytest.raises(
        UsageError, match=r"^t\.f: an array of 2 MiB .* up to 4 copies: 7 MiB .* in this container"
    ) as info:
        wire.dump(value, "t.f")
    assert "WeightChannel" in info.value.hint


@pytest.mark.parametrize("mib", [0.5, 1.5])
def test_an_array_that_fits_travels_whole(mib):
    value = array(mib) + 3
    (came,), _ = wire.load(wire.dump(((value,), {}), "t.f"))
    assert np.array_equal(came, value)


@pytest.mark.torch
@pytest.mark.parametrize("place", [lambda t: t, lambda t: ((t,), {}), lambda t: ((), {"state": {"w": t}})])
def test_a_tensor_is_looked_at_though_torch_shows_no_buffers(place):
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match="an array of 2 MiB"):
        wire.dump(place(torch.zeros(2 << 20, dtype=torch.uint8)), "t.f")
    wire.dump(place(torch.zeros(1 << 20, dtype=torch.uint8)), "t.f")


def test_memory_that_does_not_suffice_is_said_and_nothing_is_tried_again():
    tries: list[int] = []

    class Large:
        def __reduce__(self) -> str:
            tries.append(1)
            raise MemoryError

    with pytest.raises(UsageError, match=r"^t\.f: there is no memory to pickle it"):
        wire.dump(Large(), "t.f")
    assert len(tries) == 1


REF = cast("Any", ray.ObjectRef)(b"r" * 28)


@pytest.mark.parametrize(
    "value", [REF, {"deep": [REF]}, (lambda: 1, REF), lambda: REF], ids=["itself", "nested", "cloudpickle", "closure"]
)
def test_a_reference_of_ray_is_refused_because_its_reader_would_wait_for_ever(value):
    with pytest.raises(wire.WireError, match=r"t\.f: x, a .* it holds ObjectRef\(7272.*pass the value, ray\.get"):
        wire.dump((1, value), "t.f", (("x", value),))


def test_a_state_with_a_reference_of_ray_is_not_saved():
    with pytest.raises(UsageError, match=r"state\['batch'\] cannot be saved: it holds ObjectRef"):
        pack({"step": 1, "batch": REF})


def test_users_own_pickles_of_a_reference_stay_as_they_were():
    with pytest.raises(wire.WireError):
        wire.dump(REF, "t.f")
    assert pickle.loads(pickle.dumps(REF)) == REF  # noqa: S301 - made in this line
