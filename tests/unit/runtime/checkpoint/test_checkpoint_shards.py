"""Sharded tensors: saved by four ranks, restored by two, by three (unevenly) and under another placement."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import Rank, a_saver, place

from dljob.errors import CheckpointError
from dljob.runtime.checkpoint.shards import walk

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
pytest.importorskip("torch.distributed.checkpoint")  # here, so that no forked rank spends its time on it
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

pytestmark = pytest.mark.torch

WHOLE = torch.arange(10.0 * 6).view(10, 6)


@pytest.fixture(scope="module", autouse=True)
def torch_compiler() -> None:
    """Import what the first DTensor of a process imports, once for all ranks that are forked here: a second each."""
    importlib.import_module("torch._dynamo")


def piece(value: Any, rank: int, world: int, dim: int) -> Any:
    """What a rank has of a tensor; the last ones may have nothing."""
    pieces = list(torch.chunk(value, world, dim))
    return pieces[rank] if rank < len(pieces) else value.narrow(dim, 0, 0)


def sharded(rank: int, world: int, dim: int, value: Any) -> dict[str, Any]:
    """A rank's state as FSDP would hold it; its peers are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    mine = piece(value, rank, world, dim)
    whole = {"shape": value.shape, "stride": value.stride()}
    return {
        "w": DTensor.from_local(mine.clone(), mesh, [Shard(dim)], run_check=False, **whole),
        "same": DTensor.from_local(value.clone(), mesh, [Replicate()], run_check=False),
        "step": 3,
        "plain": torch.full((2,), float(rank)),
    }


def save_as(rank: int, world: int) -> Any:
    def body(mine: Any, tell: Any) -> None:
        mine.save(3, sharded(rank, world, 0, WHOLE), persist=True)
        mine.wait(20)
        tell("saved")

    return body


def load_as(rank: int, world: int, dim: int) -> Any:
    def body(mine: Any, tell: Any) -> None:
        into = sharded(rank, world, dim, torch.zeros_like(WHOLE))
        step, found = mine.load(into)
        wanted = piece(WHOLE, rank, world, dim)
        assert step == 3
        assert found["w"] is into["w"]
        assert torch.equal(found["w"].to_local(), wanted), found["w"].to_local()
        assert torch.equal(found["same"].to_local(), WHOLE)
        assert found["plain"].tolist() == [float(rank)] * 2
        tell("loaded")

    return body


def in_turn(saver: Any, folder: Path, world: int, number: int, body: Any) -> list[str]:
    said = []
    for rank in range(world):
        process = Rank(place(saver, folder, rank=rank, world=world, number=number), body(rank))
        said.append(process.heard())
        process.wait()
    return said


@pytest.mark.parametrize(("world", "dim"), [(2, 0), (4, 1)])
def test_shards_are_cut_anew_for_another_world(tmp_path, world, dim):
    with a_saver() as (saver, _):
        assert in_turn(saver, tmp_path, 4, 1, lambda rank: save_as(rank, 4)) == ["saved"] * 4
        assert in_turn(saver, tmp_path, world, 2, lambda rank: load_as(rank, world, dim)) == ["loaded"] * world


def test_another_number_of_ranks_is_told_what_it_got(tmp_path):
    def save(mine: Any, tell: Any) -> None:
        mine.save(3, {"plain": 1}, persist=True)
        mine.wait(20)
        tell("saved")

    def load(mine: Any, tell: Any) -> None:
        log: list[str] = []
        mine._say = log.append
        assert mine.load() == (3, {"plain": 1})
        tell(log[-1].partition("; ")[2])

    with a_saver() as (saver, _):
        assert in_turn(saver, tmp_path, 1, 1, lambda _: save) == ["saved"]
        said = in_turn(saver, tmp_path, 2, 2, lambda _: load)
    words = "1 rank saved it and 2 load it: sharded tensors are put together anew, all else is what rank 0 saved"
    assert said == [words, words]


def test_shards_without_a_place_to_go_are_refused_in_words(tmp_path):
    def body(mine: Any, tell: Any) -> None:
        try:
            mine.load()
        except CheckpointError as error:
            tell(str(error).splitlines()[0])

    with a_saver() as (saver, _):
        assert in_turn(saver, tmp_path, 1, 1, lambda rank: save_as(rank, 1)) == ["saved"]
        said = in_turn(saver, tmp_path, 1, 2, lambda _: body)
        assert said == ["the checkpoint has sharded tensors, and nothing says how they are to be sharded now"]


# -- FSDP2, its ranks joined by gloo


def fully_sharded(rank: int, world: int, folder: Path, seed: int) -> tuple[Any, Any, Any]:
    """(model, optimizer, state) after one step, of a rank among peers that are there."""
    store = dist.FileStore(str(folder / f"store-{world}-{seed}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(4, 6)).sum().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    return model, optimizer, {"model": weights, "optimizer": moments}


def whole(state: Any) -> str:
    """All numbers of a sharded state, put together by all ranks."""
    found = {path: leaf for path, leaf in walk(state) if isinstance(leaf, torch.Tensor)}
    full = {path: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf for path, leaf in found.items()}
    assert sum(isinstance(leaf, DTensor) for leaf in found.values()) == 12, "4 weights and 2 moments of each"
    return str([(path, [float(n).hex() for n in full[path].flatten()]) for path in sorted(full)])


def fsdp(rank: int, world: int, folder: Path, *, save: bool) -> Any:
    def body(mine: Any, tell: Any) -> None:
        torch.set_num_threads(1)
        model, optimizer, state = fully_sharded(rank, world, folder, seed=1 if save else 2)
        before = whole(state)
        if save:
            mine.save(5, state, persist=True)
            mine.wait(60)
        else:
            _, found = mine.load(state)
            set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
            weights, moments = get_state_dict(model, optimizer)
            after = whole({"model": weights, "optimizer": moments})
            assert after != before
            before = after
        tell(before)
        dist.destroy_process_group()

    return body


@pytest.mark.parametrize("world", [3, 1])
def test_a_model_of_fsdp_and_its_optimizer_go_on_in_a_world_of_another_size(tmp_path, world):
    def together(saver: Any, number: int, size: int, *, save: bool) -> list[str]:
        ranks = [
            Rank(place(saver, tmp_path / "c", rank=n, world=size, number=number), fsdp(n, size, tmp_path, save=save))
            for n in range(size)
        ]
        said = [rank.heard() for rank in ranks]
        assert [rank.wait() for rank in ranks] == [0] * size
        return said

    with a_saver() as (saver, _):
        saved = together(saver, 1, 2, save=True)
        assert saved[0]
        assert set(together(saver, 2, world, save=False)) == set(saved)
