"""Packing against an exhaustive search, on instances small enough for one."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from dljob.plan.capacity import Devices, admits, copies, demand_of, room_of, take
from dljob.plan.conflict import conflict_of
from dljob.plan.model import GRAIN, Bundle, MachineGroup, Unit
from dljob.plan.packing import Batch, MachineRun, Packing, Stuck, count_that_fits, machines_of, pack, runs_of


def unit(name, *bundles, selector=(), apart=None):
    made = tuple(
        Bundle(tuple(sorted((r, int(a * GRAIN)) for r, a in b.items())), (("role", i),)) for i, b in enumerate(bundles)
    )
    return Unit(name, made, (("role", 0),), selector, apart)


def batch(name, count, *bundles, **more):
    sample = unit(f"{name}/0", *bundles, **more)
    return Batch(name, demand_of(sample), count, sample)


def room(labels=(), **amounts):
    return room_of(tuple(sorted((name, int(amount * GRAIN)) for name, amount in amounts.items())), labels)


def runs(batches, *rooms):
    return runs_of([(r, (i,)) for i, r in enumerate(rooms)], batches)


def exhaustive(batches, rooms):
    todo = [b.demand for b in batches for _ in range(b.count)]
    for choice in product(range(len(rooms)), repeat=len(todo)):
        now = list(rooms)
        for demand, index in zip(todo, choice, strict=True):
            after = take(now[index], demand) if admits(now[index], demand) else None
            if after is None:
                break
            now[index] = after
        else:
            return True
    return False


def check(packing, batches, rooms):
    """The packing is what it says: everything placed, nothing over."""
    now = dict(enumerate(rooms))
    for b, spots in zip(batches, packing.spots, strict=True):
        assert sum(len(ids) * each for ids, each in spots) == b.count
        for ids, each in spots:
            for index in ids:
                for _ in range(each):
                    assert admits(now[index], b.demand)
                    now[index] = take(now[index], b.demand)
                    assert now[index] is not None


demands = st.fixed_dictionaries(
    {"CPU": st.integers(1, 4)},
    optional={"GPU": st.sampled_from([0.25, 0.5, 0.6, 1, 2])},
)
small_batches = st.lists(
    st.tuples(
        st.integers(1, 2),
        st.lists(demands, min_size=1, max_size=2),
        st.sampled_from([(), (("zone", "a"),), (("zone", "!a"),)]),
        st.sampled_from([None, ("s", "x"), ("s", "y")]),
    ),
    min_size=1,
    max_size=3,
).map(lambda found: [batch(f"b{i}", n, *b, selector=s, apart=a) for i, (n, b, s, a) in enumerate(found)])
small_rooms = st.lists(
    st.tuples(st.integers(1, 7), st.integers(0, 3), st.sampled_from([(), (("zone", "a"),), (("zone", "b"),)])),
    min_size=1,
    max_size=3,
).map(lambda found: [room(labels, CPU=cpu, GPU=gpu) for cpu, gpu, labels in found])


@given(small_batches, small_rooms)
def test_pack_finds_what_an_exhaustive_search_finds(batches, rooms):
    found = pack(batches, runs(batches, *rooms))
    if isinstance(found, Packing):
        check(found, batches, rooms)
    else:
        assert found.proven
        assert not exhaustive(batches, rooms)


@given(small_batches, small_rooms)
def test_a_conflict_is_minimal(batches, rooms):
    where = runs(batches, *rooms)
    if isinstance(pack(batches, where), Packing):
        return
    conflict = conflict_of(batches, where, proven=True)
    assert conflict.proven
    assert not exhaustive(conflict.batches, rooms)
    for left_out in conflict.batches:
        assert exhaustive([b for b in conflict.batches if b is not left_out], rooms)


@given(small_rooms, demands, st.integers(0, 9))
def test_copies_is_the_most_that_can_be_taken(rooms, demand, limit):
    wanted = demand_of(unit("u/0", demand))
    for where in rooms:
        most = copies(where, wanted, limit)
        assert take(where, wanted, most) is not None
        assert most == limit or take(where, wanted, most + 1) is None


@given(st.permutations([0.25, 0.25, 0.5, 0.5, 0.6, 1]), st.integers(0, 6))
def test_the_order_of_units_on_a_machine_does_not_matter(shares, gpus):
    now = room(CPU=10, GPU=gpus)
    for share in shares:
        now = take(now, demand_of(unit("u/0", {"GPU": share}))) if now else None
    assert (now is not None) == (gpus >= 4)


def test_two_free_halves_are_no_whole_device():
    halves = take(room(GPU=2), demand_of(unit("u/0", {"GPU": 0.5}, {"GPU": 0.6})))
    assert halves is not None
    assert copies(halves, demand_of(unit("v/0", {"GPU": 1})), 5) == 0
    assert copies(halves, demand_of(unit("v/0", {"GPU": 0.5})), 5) == 1


def test_the_free_part_of_a_device_used_by_others_can_be_shared():
    partly = room(GPU=1.75)
    assert partly.devices == (("GPU", Devices(1, rest=7500)),)
    assert copies(partly, demand_of(unit("u/0", {"GPU": 0.25})), 9) == 7
    assert copies(partly, demand_of(unit("u/0", {"GPU": 0.8})), 9) == 1


def test_a_resource_without_device_ids_is_one_number():
    assert copies(room(fpga=1), demand_of(unit("u/0", {"fpga": 0.3})), 9) == 3
    assert copies(room(), demand_of(unit("u/0", {"fpga": 0.3})), 9) == 0


def test_memory_that_a_machine_does_not_state_is_not_counted():
    wanted = demand_of(unit("u/0", {"memory": 2**40}))
    assert copies(room(CPU=1), wanted, 1000) == 1000
    assert copies(room(CPU=1, memory=2**40), wanted, 1000) == 1
    assert copies(room_of((("CPU", GRAIN),), (), (("CPU", GRAIN), ("memory", GRAIN))), wanted, 1000) == 0


def test_a_full_device_machine_is_not_mistaken_for_one_without_devices():
    cpu = batch("cpu", 1, {"CPU": 1})
    full = room_of((("CPU", GRAIN),), (), (("CPU", 2 * GRAIN), ("GPU", GRAIN)))
    found = pack([cpu], runs([cpu], full, room(CPU=1)))
    assert isinstance(found, Packing)
    assert found.spots[0] == (([1], 1),)


def test_a_million_units_are_one_division():
    wanted = batch("b", 1_000_000, {"CPU": 1})
    group = MachineGroup("g", 31_250, (("CPU", 32 * GRAIN),), ())
    found = pack([wanted], runs_of(machines_of([group]), [wanted]))
    assert isinstance(found, Packing)
    assert [(len(ids), each) for ids, each in found.spots[0]] == [(31_250, 32)]
    assert count_that_fits(wanted, [MachineRun(room(CPU=1), range(10))]) == 10


def _knapsack(sizes, rooms):
    """Batches that fill machines to the brim in one way only."""
    return [batch(f"b{i}", 1, {"CPU": size}) for i, size in enumerate(sizes)], [room(CPU=cpu) for cpu in rooms]


def test_the_search_finds_a_packing_where_greedy_fails():
    batches, rooms = _knapsack([6, 6, 5, 5, 4, 4], [15, 15])
    assert pack(batches, runs(batches, *rooms), steps=0) == Stuck(proven=False)
    found = pack(batches, runs(batches, *rooms))
    assert isinstance(found, Packing)
    check(found, batches, rooms)
    used = sorted(sum(a for n, a in r.room.bulk if n == "CPU") for r in found.runs)
    assert used == [0, 0]


def test_a_search_cut_short_proves_nothing():
    batches, rooms = _knapsack([6, 6, 6, 4, 4, 4], [15, 15])
    where = runs(batches, *rooms)
    assert pack(batches, where) == Stuck(proven=True)
    assert pack(batches, where, steps=3) == Stuck(proven=False)


def test_too_many_of_one_kind_are_proven_too_many_however_many_there_are():
    batches = [batch("a", 60, {"CPU": 3})]
    assert pack(batches, runs(batches, *[room(CPU=5)] * 50)) == Stuck(proven=True)
    assert isinstance(pack(batches, runs(batches, *[room(CPU=5)] * 60)), Packing)


def test_too_many_units_for_the_search_prove_nothing():
    batches = [batch("a", 30, {"CPU": 6}), batch("b", 30, {"CPU": 4})]
    rooms = [room(CPU=15)] * 20
    assert pack(batches, runs(batches, *rooms)) == Stuck(proven=False)


def test_a_smaller_conflict_is_only_as_sure_as_its_own_search():
    batches = [batch("a", 30, {"CPU": 6}), batch("b", 30, {"CPU": 4}), batch("c", 1, {"CPU": 1})]
    where = runs(batches, *[room(CPU=15)] * 20)
    assert pack(batches, where) == Stuck(proven=True)
    conflict = conflict_of(batches, where, proven=True)
    assert [b.name for b in conflict.batches] == ["a", "b"]
    assert not conflict.proven


def test_a_refusal_that_depends_on_the_order_of_sharers_is_not_proven():
    batches = [batch("a", 1, {"GPU": 0.5, "CPU": 3}), batch("b", 1, {"GPU": 0.2, "CPU": 3})]
    rooms = [room(GPU=0.7, CPU=6)]
    assert pack(batches, runs(batches, *rooms)) == Stuck(proven=False)
