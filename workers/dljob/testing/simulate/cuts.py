"""Jobs with consistent cuts under seeded schedules of faults: each prompt is to be trained, or set aside, exactly once.

The queues are the real pure ones (`Backlog`, `QueueCut`), with their clients' turns and stamps. A driver with a state
puts prompts, rollouts without a state answer them, a trainer with a state trains; each may die at any step, so may a
queue's process and PrimeMaster, and the head with all of them; any part of a cut may be damaged on its disk, which the
real core (`dljob.master.failure.cuts`) hears of. The count is taken from the log in the trainer's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

from immutables import Map

from dljob.calls.backlog import Backlog, HolderEnd, PutRefusal, QueueCaller
from dljob.calls.queue_cut import CutStamp, QueueCut
from dljob.master.failure import cuts as core
from dljob.master.start import shards
from dljob.master.state import shard_table
from dljob.master.state.checkpoint_ids import CheckpointId, RestoreDecision, RunId, Saves
from dljob.master.state.cuts import MAX_KEPT_CUTS, Cut, CutQueue, Cuts, checkpoints_allowed_by_cuts
from dljob.master.state.events import CheckpointDecided, CutDamaged, CutsFound
from dljob.master.state.evolve import evolve
from dljob.testing.world.fault_schedule import chance

PROMPTS, TURNS, FAULTY = 24, 6000, 900
"""Prompts of a job, and the turns in all and with faults."""
DELIVERIES = 2
"""Failed deliveries after which an item is set aside, in jobs whose ranks fail by themselves."""
SHAPES: dict[str, dict[str, Any]] = {
    "queues": {},
    "shards": {"reader": True},
    "calls": {"asks": True},
    "queues, failing ranks": {"fails": True},
}
"""Where the prompts come from, and how their answers reach the trainer."""


@dataclass
class KeptQueue:
    """A keeper: its backlog, which outlives its process, and a cut, which does not."""

    backlog: Backlog = field(default_factory=lambda: Backlog(6, 1 << 20))
    epoch: int = 0
    cut: QueueCut | None = None


@dataclass
class QueueUser:
    """A process of a rank that uses queues, as `QueueSession` does."""

    name: str
    incarnation: int
    stateful: bool
    epoch: int = 0
    last_taken: int = 0
    last_seen: int = 0
    puts: dict[str, int] = field(default_factory=dict[str, int])
    turns: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def stamp(self) -> CutStamp:
        """Return the stamp of its next request."""
        return CutStamp(self.epoch, self.last_taken, self.last_seen)

    def caller(self, queue: str) -> QueueCaller:
        """Return how a queue knows it."""
        return QueueCaller(self.name, self.incarnation, f"{self.name}.{self.incarnation}.{queue}")


WORLDS = ("driver", "trainer")
FRESH: dict[str, dict[str, Any]] = {"driver": {"sent": 0, "asked": []}, "trainer": {"trained": []}}


def _silent(*_: object) -> None:
    """Take what the core notes: a simulated job has no timeline."""


class CutCore:
    """The cuts of PrimeMaster: its real decisions, on the part of a transaction that they use."""

    def __init__(self) -> None:
        self.d: Any = SimpleNamespace(
            cuts=Cuts(), saves={}, job=SimpleNamespace(loading=()), note=_silent, because=_silent
        )
        self.incarnation = 1
        self.d.feeds = Map(prompts=shard_table.new_table(PROMPTS, 2, 1))

    @property
    def cuts(self) -> Cuts:
        """Return what PrimeMaster knows of cuts."""
        return self.d.cuts

    def commit(self, number: int) -> None:
        """Commit a cut: all of it is on disk."""
        marks = tuple((world, CheckpointId(RunId(1, 1), number)) for world in WORLDS)
        new_cut = Cut(number, 0.0, marks, tuple(CutQueue(name, "", 0, 0, 0) for name in ("prompts", "samples")))
        self.d.cuts = evolve(self.cuts, last_number=number, kept_cuts=(*self.cuts.kept_cuts, new_cut)[-MAX_KEPT_CUTS:])
        shards.settle_oldest_cut(self.d, self.cuts.kept_cuts[0].number)

    def decide(self, world: str, mark: CheckpointId | None, *, force: bool) -> bool:
        """Decide what the next incarnation of a world restores; False if the decision is refused. `force`: never."""
        self.incarnation += 1
        event = CheckpointDecided(world, RunId(1, self.incarnation), mark)
        if not force and not core.accept_decision(self.d, event):
            return False
        self.d.base = SimpleNamespace(saves=self.d.saves)
        self.d.saves = {**self.d.saves, world: Saves((), (RestoreDecision(event.run_id, mark),))}
        core.handle_decided_checkpoint(self.d, event)
        return True

    def next_attempt(self, unreadable: set[int], data: dict[int, Any]) -> None:
        """Forget all, and read the manifests of the last cuts."""
        kept_cuts = self.cuts.kept_cuts
        readable_cuts = tuple(cut for cut in kept_cuts if cut.number not in unreadable)
        bad = tuple((cut.number, "torn") for cut in kept_cuts if cut.number in unreadable)
        self.d.cuts = Cuts()
        self.d.feeds = Map(prompts=shard_table.new_table(PROMPTS, 2, 1))
        feeds = shards.read_carried_positions(data[readable_cuts[-1].number]) if readable_cuts else ()
        core.handle_found_cuts(self.d, CutsFound(readable_cuts, bad, () if readable_cuts or not bad else WORLDS, feeds))


class CutStory:
    """One job under a seeded schedule; `bug` plants a fault in the protocol.

    `reader`: the prompts come from shards of a rank without a state, not from the driver. `asks`: the driver asks for
    their answers by calls, whose requests its state has, and puts the samples itself. `fails`: ranks fail by
    themselves, with some items always; PrimeMaster tells the queues of each end, and rollouts leave for good.
    """

    def __init__(
        self, seed: int, bug: str = "", *, reader: bool = False, asks: bool = False, fails: bool = False
    ) -> None:
        self.random, self.bug = chance(f"cuts {seed}"), bug
        self.reads, self.asks = reader, asks
        self.fails = fails
        self.queues = self.empty_queues()
        self.incarnations = Counter[str]()
        self.number, self.epoch = 0, 0
        self.core = CutCore()
        self.files: dict[int, dict[str, Any]] = {}
        self.data: dict[int, Any] = {}
        """Cut -> the positions in its manifest."""
        self.leased: tuple[tuple[int, int], ...] = ()
        self.damaged = set[tuple[int, str]]()
        """(cut, part): a world, a queue or the manifest."""
        self.passed = self.anew = 0
        self.bodies: dict[str, dict[int, int]] = {"prompts": {}, "samples": {}}
        self.open: dict[str, Any] | None = None
        self.cuts = self.restores = 0
        self.rollouts = [self.client(f"rollout/{rank}", stateful=False) for rank in range(3)]
        self.holds: list[int | None] = [None] * 3
        self.made_in = [0] * 3
        self.lost = 0
        """Prompts that were trained since the cut which a restore went back to."""
        self.foreign = list[int]()
        """Samples that were accepted in another history than the one in which they were made."""
        self.reader, self.shard = self.client("reader/0", stateful=False), list[int]()
        self.away = set[int]()
        """Rollouts that have left."""
        self.bad: dict[str, set[int]] = {"prompts": set(), "samples": set()}
        """Queue -> the prompts with whose items its consumers always fail."""
        if fails:
            picked = self.random.sample(range(PROMPTS), 4)
            self.bad = {"prompts": set(picked[:2]), "samples": set(picked[2:])}
        self.ends: dict[str, tuple[QueueUser, HolderEnd]] = {}
        """Rank -> its last process that has ended, of which the queues are to be told."""
        self.failures = Counter[tuple[str, int]]()
        """(queue, prompt) -> its failed deliveries of which the queue was told."""
        self.aside = dict[tuple[str, int], bool]()
        """(queue, prompt) of each item that was set aside -> whether its answer was put before, so that it counts."""
        self.broken = list[str]()
        """What broke the law of deliveries."""
        self.calls, self.answers = list[tuple[int, int]](), list[tuple[int, int]]()
        """(incarnation of the driver, prompt): under way, and answered."""
        self.begin(FRESH["driver"], FRESH["trainer"])

    def empty_queues(self) -> dict[str, KeptQueue]:
        """Return queues without items."""
        deliveries = DELIVERIES if self.fails else 0
        return {name: KeptQueue(Backlog(6, 1 << 20, deliveries)) for name in ("prompts", "samples")}

    def client(self, name: str, *, stateful: bool) -> QueueUser:
        """Return the next process of a rank."""
        self.incarnations[name] += 1
        return QueueUser(name, self.incarnations[name], stateful)

    def begin(self, driver: dict[str, Any], trainer: dict[str, Any]) -> None:
        """Start the ranks with a state, from these states."""
        self.driver, self.trainer = (self.client(name, stateful=True) for name in ("driver/0", "trainer/0"))
        self.sent, self.trained = driver["sent"], list(trainer["trained"])
        # The futures of its last process are gone: what the state has as asked for is asked for again.
        self.asked = list(driver["asked"])
        self.calls += [(self.driver.incarnation, prompt) for prompt in self.asked]

    # -- the requests of clients

    def put(self, client: QueueUser, name: str, body: int) -> bool:
        """Put an item, as `DataQueue.put` does; False while the queue is full."""
        queue, caller = self.queues[name], client.caller(name)
        if not queue.backlog.register(caller):
            return True
        if 0 < client.epoch <= queue.epoch and self.bug != "future":
            client.epoch = queue.epoch + 1
            return True
        number = client.puts.get(name, 0) + 1
        refusal = queue.backlog.put_refusal(caller, number, 1, str(body))
        if refusal is PutRefusal.FULL:
            return False
        client.puts[name] = number
        if refusal is None:
            item = queue.backlog.put(caller, number, 1, str(body))
            self.bodies[name][item] = body
            if name == "samples" and client is not self.driver and self.made_in[int(client.name[-1])] < self.epoch:
                self.foreign.append(body)
            if queue.cut is not None and queue.cut.is_before(caller, self.seen_by(client)):
                queue.cut.put(item, 1, str(body))
        self.learn(client, queue, ())
        return True

    def get(self, client: QueueUser, name: str) -> int | None:
        """Get an item, as `DataQueue.get` does; None if there is none."""
        queue, caller = self.queues[name], client.caller(name)
        if not queue.backlog.register(caller):
            return None
        turn = client.turns.get(name, 0) + 1
        client.turns[name] = turn
        stamp = self.seen_by(client)
        done = queue.backlog.begin_get(caller, turn, turn - 1) or ()
        for number in done:
            del self.failures[name, self.bodies[name][number]]  # it was no bad item
        if queue.cut is not None and (queue.cut.is_before(caller, stamp) or self.bug == "acknowledgement"):
            queue.cut.drop_items(done)
        only = queue.cut.item_sizes if queue.cut is not None and queue.cut.restricts_gets(caller, stamp) else None
        if self.fails:
            # Now and then an item has waited long enough for another rank.
            patient = self.random.random() < 0.9
            only = queue.backlog.choose_items(caller, 1, only, () if patient else queue.backlog.failed)
        if not queue.backlog.can_answer_get(1, only):
            queue.backlog.take(caller, 0, only)
            return None
        ids = queue.backlog.take(caller, 1, only)
        self.learn(client, queue, ids)
        body = self.bodies[name][ids[0]]
        if (name, body) in self.aside:
            self.broken.append(f"item {body} of {name} is delivered after it was set aside")
        return body

    def seen_by(self, client: QueueUser) -> CutStamp:
        """Return the stamp that a queue sees."""
        # A marker that is overtaken: the queue takes what follows it for something of before the cut.
        return CutStamp(client.epoch) if self.bug == "marker" else client.stamp

    def learn(self, client: QueueUser, queue: KeptQueue, ids: tuple[int, ...]) -> None:
        """Take the stamp of an answer."""
        client.epoch = max(client.epoch, queue.epoch + 1)
        if queue.cut is not None and queue.cut.puts_receiver_after(ids):
            client.last_seen = max(client.last_seen, queue.cut.number)

    # -- what ranks do

    def drive(self) -> None:
        """Bring the next prompt into the job."""
        if self.reads:
            self.read()
        elif self.asks:
            self.ask()
        elif self.sent < PROMPTS and self.put(self.driver, "prompts", self.sent):
            self.sent += 1

    def ask(self) -> None:
        """Have an engine answer, put an answered prompt as a sample, or ask for the next prompt."""
        if self.calls and self.random.random() < 0.5:
            self.answers.append(self.calls.pop(self.random.randrange(len(self.calls))))
        elif self.answers:
            incarnation, prompt = self.answers[0]
            if incarnation < self.driver.incarnation and self.bug != "stale answer":
                del self.answers[0]
                return
            if self.bug == "answered" and prompt in self.asked:
                self.asked.remove(prompt)  # its answer is here, and in no queue and no state yet
            elif self.put(self.driver, "samples", prompt):
                del self.answers[0]
                self.asked = [asked_prompt for asked_prompt in self.asked if asked_prompt != prompt]
                if incarnation < self.driver.incarnation:
                    self.foreign.append(prompt)
        elif self.sent < PROMPTS and len(self.asked) < 4:
            self.asked.append(self.sent)
            self.calls.append((self.driver.incarnation, self.sent))
            self.sent += 1

    def read(self) -> None:
        """Put the next prompt of a shard, or report the shard and lease the next one."""
        if self.shard:
            if self.put(self.reader, "prompts", self.shard[0]):
                del self.shard[0]
            return
        d, key = self.core.d, ("reader", 0)
        feed, incarnation = d.feeds["prompts"], self.reader.incarnation
        leases = feed.leases.get(key)
        if leases is not None and leases.incarnation < incarnation:
            feed, leases = shard_table.take_back_leases(feed, key), None
        for run in self.leased:
            cut = 0 if self.bug == "positions" else self.number
            feed = shard_table.finish_shard(feed, key, incarnation, run, None, cut=cut)
        leases = feed.leases.get(key) or shard_table.ShardLeases("reader/0", incarnation, RunId(1, 1), saves=False)
        feed = shard_table.lease_shards(feed, key, leases, 1)
        d.feeds = d.feeds.set("prompts", feed)
        self.leased = feed.leases[key].runs if key in feed.leases else ()
        self.shard = [position for run in self.leased for position in range(*run)]
        if self.bug != "lease":
            self.reader.epoch = max(self.reader.epoch, self.epoch + 1)

    def roll(self, rank: int) -> None:
        """Get a prompt, or put the sample of the one that is held."""
        client, held_item = self.rollouts[rank], self.holds[rank]
        if held_item in self.bad["prompts"]:
            self.die(rank, HolderEnd.FAILED)
        elif held_item is None:
            self.holds[rank] = self.get(client, "prompts")
            self.made_in[rank] = self.epoch
        elif self.put(client, "samples", held_item):
            self.holds[rank] = None

    def train(self) -> None:
        """Train on a sample: its prompt is in the state."""
        prompt = self.get(self.trainer, "samples")
        if prompt in self.bad["samples"]:
            self.end(self.trainer, HolderEnd.FAILED)
            self.restore()
        elif prompt is not None:
            self.trained.append(prompt)

    # -- ends of processes

    def end(self, client: QueueUser, how: HolderEnd) -> None:
        """Note how a process ended: often the queues are told before the next one asks them."""
        self.ends.setdefault(client.name, (client, how))
        if self.ends[client.name][0].incarnation < client.incarnation:
            self.ends[client.name] = (client, how)
        if self.random.random() < 0.7:
            self.tell_ends()

    def tell_ends(self) -> None:
        """Tell all queues of the last ends, as PrimeMaster does, and count the deliveries that failed by them."""
        for (name, queue), (client, how) in product(self.queues.items(), self.ends.values()):
            items = queue.backlog.end_incarnation(client.name, client.incarnation, how)
            if items is None:
                self.bad[name].clear()  # the role pays, and somebody mends its code
            for item in items or ():
                self.check_failed(name, queue, item.number)
        self.ends = {}

    def check_failed(self, name: str, queue: KeptQueue, number: int) -> None:
        """Count a failed delivery, and check that the item is set aside after so many unless another rank has it."""
        body, aside = self.bodies[name][number], number in queue.backlog.dead
        self.failures[name, body] += 1
        is_held = any(number in session.ids for session in queue.backlog.sessions.values())
        if aside is not (self.failures[name, body] >= DELIVERIES and not is_held):
            which = f"item {body} of {name} after {self.failures[name, body]} failed deliveries"
            self.broken.append(f"{which}: it {'is' if aside else 'is not'} set aside")
        if aside:
            # A rank that failed between its put and its next get leaves an item that was used.
            answered = name == "prompts" and str(body) in self.queues["samples"].backlog.keys
            self.aside[name, body] = answered
            if queue.cut is not None:
                queue.cut.drop_items((number,))

    # -- cuts

    def cut(self) -> None:
        """Do the next step of a cut: begin, the consumer's save, the other's, and the seal queue by queue."""
        if self.open is None:
            self.number += 1
            members = {self.driver.name: self.driver.incarnation, self.trainer.name: self.trainer.incarnation}
            for queue in self.queues.values():
                queue.cut = QueueCut.from_backlog(self.number, members, queue.backlog)
            self.open = {"queues": {}}
        elif "trainer" not in self.open:
            self.save(self.trainer, "trainer", {"trained": list(self.trained)})
        elif "driver" not in self.open:
            self.save(self.driver, "driver", {"sent": self.sent, "asked": list(self.asked)})
        elif remaining := [name for name in self.queues if name not in self.open["queues"]]:
            name = self.random.choice(remaining)
            cut = self.queues[name].cut
            assert cut is not None  # noqa: S101 - all queues have begun it
            cut.seal()
            self.open["queues"][name] = (dict(cut.item_sizes), dict(cut.keys))
            remaining = {self.bodies[name][number] for number in cut.item_sizes}
            sealed = {(queue, body) for queue, body in self.aside if queue == name and str(body) in cut.keys}
            self.open["aside"] = self.open.get("aside", set()) | {item for item in sealed if item[1] not in remaining}
        else:
            self.files[self.number], self.cuts = deepcopy(self.open), self.cuts + 1
            self.core.commit(self.number)
            self.data[self.number] = shards.carry_positions(self.core.d, 99)
            self.give_up()

    def save(self, client: QueueUser, role: str, state: dict[str, Any]) -> None:
        """Save the state of a rank for the cut, and turn it in all queues."""
        assert self.open is not None  # noqa: S101 - `cut` has begun it
        client.last_taken = self.number
        for name, queue in self.queues.items():
            assert queue.cut is not None  # noqa: S101 - all queues have begun it
            caller = client.caller(name)
            session = queue.backlog.sessions.get(caller.session)
            # The marker may come late: what follows it has its stamp, and is not taken for something before it.
            if self.bug != "marker":
                queue.cut.mark_saved(caller, self.number, session.ids if session is not None else ())
        self.open[role] = state

    def give_up(self) -> None:
        """Forget the cut under way."""
        self.open = None
        for queue in self.queues.values():
            queue.cut = None

    # -- faults

    def restore(self) -> None:
        """Take the ranks with a state and the queues back to the last cut, as after the loss of one of them."""
        self.give_up()
        if self.fails:
            self.end(self.driver, HolderEnd.LOST)
            self.end(self.trainer, HolderEnd.LOST)
        self.epoch, self.restores = self.epoch + 1, self.restores + 1
        before, epoch = self.core.cuts.kept_cuts, self.core.cuts.restore_count
        chosen = self.decide()
        self.passed += self.core.cuts.kept_cuts != before
        self.anew += bool(before and not self.core.cuts.kept_cuts)
        states = {
            world: self.files[mark.step][world] if mark is not None else FRESH[world] for world, mark in chosen.items()
        }
        if (
            self.core.cuts.restore_count == epoch
        ):  # there has been no cut: all begins anew, the queues of this model as well
            self.core.d.feeds = Map(prompts=shard_table.new_table(PROMPTS, 2, 1))
        back = self.core.cuts.restored_cut
        # A queue knows what it set aside, and that of another head by its cut alone, which has the key and no item.
        known = {(name, self.bodies[name][item]) for name, queue in self.queues.items() for item in queue.backlog.dead}
        if back is not None:
            known |= self.files[back.number]["aside"]
        for item in self.aside.keys() - known:
            del self.aside[item], self.failures[item]
        for name, queue in self.queues.items():
            queue.epoch = self.epoch
            if self.bug == "logged" and back is not None and (back.number, name) in self.damaged:
                continue  # what was a line in the log: the queue stays as it is
            restored_items, keys = dict[int, int](), dict[str, int]()
            if back is not None:
                restored_items, keys = self.files[back.number]["queues"][name]
            if self.bug == "set aside":
                queue.backlog.dead.clear()
            queue.backlog.restore(restored_items, keys, closed=False)
        self.lost += len(self.trained) - len(states["trainer"]["trained"])
        self.begin(states["driver"], states["trainer"])

    def decide(self) -> dict[str, CheckpointId | None]:
        """Have both worlds choose, and all again where one of them cannot follow; return what they restore."""
        for _ in range(5):
            chosen = dict[str, CheckpointId | None]()
            for world in self.random.sample(WORLDS, 2):
                if world not in self.core.cuts.pending_worlds and self.bug != "logged":
                    self.verify()
                among = checkpoints_allowed_by_cuts(self.core.cuts, world) or ()
                mark = next((candidate for candidate in among if (candidate.step, world) not in self.damaged), None)
                if not self.core.decide(world, mark, force=self.bug == "alone"):
                    break
                chosen[world] = mark
            else:
                return chosen
        raise AssertionError("the worlds find no cut together")

    def verify(self) -> None:
        """Pass over the cuts with a damaged queue file."""
        for cut in reversed(self.core.cuts.kept_cuts):
            if any((cut.number, queue) in self.damaged for queue in self.queues):
                core.handle_damaged_cut(self.core.d, CutDamaged(cut.number, "a queue file is damaged"))

    def damage(self) -> None:
        """Damage one part of a cut on its disk."""
        if self.core.cuts.kept_cuts:
            part = self.random.choice([*WORLDS, *self.queues, "manifest"])
            self.damaged.add((self.random.choice(self.core.cuts.kept_cuts).number, part))

    def leave(self) -> None:
        """Let a rollout leave for good, as a role that shrinks, or come back."""
        rank = self.random.randrange(1, 3)
        self.die(rank)
        self.away ^= {rank}

    def die(self, rank: int, how: HolderEnd = HolderEnd.LOST) -> None:
        """End a rollout, or the reader (3): another process of the rank takes its place."""
        if self.fails and rank < 3:
            self.end(self.rollouts[rank], how)
        if rank == 3:
            self.reader, self.shard, self.leased = self.client("reader/0", stateful=False), [], ()
            return
        self.rollouts[rank] = self.client(f"rollout/{rank}", stateful=False)
        self.holds[rank] = None

    def lose_keeper(self) -> None:
        """End a queue's process: the items are on disk, the cut under way is not."""
        name = self.random.choice(list(self.queues))
        queue = self.queues[name]
        queue.backlog = Backlog.from_data(queue.backlog.to_data())
        self.give_up()

    def lose_master(self) -> None:
        """End PrimeMaster: it goes on with the cut that its journal has, and repeats the begin of one it has not."""
        if self.open is not None and not self.open.keys() & {"trainer"}:
            self.give_up()

    def lose_head(self) -> None:
        """Lose the head with all processes and queues: only the files of the last cut are left."""
        self.queues = self.empty_queues()
        for queue in self.queues.values():
            queue.backlog.next = 1000 * (self.restores + 1)
        self.core.next_attempt({number for number, part in self.damaged if part == "manifest"}, self.data)
        for rank in range(4):
            self.die(rank)
        self.failures.clear()
        self.restore()

    def run(self) -> list[int]:
        """Go on until all is trained, under faults for a while; return the log of the trainer's state."""
        for turn in range(TURNS):
            drawn = self.random.random()
            if turn < FAULTY and drawn < 0.035:
                faults = [self.restore, self.lose_keeper, self.lose_master, self.lose_head]
                faults += [lambda: self.die(self.random.randrange(3 + self.reads))] * 3 + [self.damage] * 2
                if self.fails:
                    faults += [self.leave, lambda: self.die(self.random.randrange(3), HolderEnd.FAILED)]
                self.random.choice(faults)()
            elif drawn < 0.12:
                self.cut()
            else:
                rolls = [lambda rank=rank: self.roll(rank) for rank in range(3) if rank not in self.away]
                work = [self.drive, self.train, *rolls, *([self.tell_ends] if self.fails else [])]
                self.random.choice(work)()
            if turn > FAULTY and len({*self.trained, *(body for _, body in self.aside)}) >= PROMPTS:
                break
        return self.trained


def wrong(log: list[int]) -> str:
    """Say which prompts were trained, or set aside, twice or never."""
    count = Counter(log)
    twice, never = sorted(n for n in count if count[n] > 1), sorted(set(range(PROMPTS)) - count.keys())
    return f"twice {twice}, never {never}" if twice or never else ""


def problems(story: CutStory) -> list[str]:
    """Run a job, and return what is wrong with the log of its trainer."""
    log = story.run()
    aside = {body for (_, body), answered in story.aside.items() if not (answered and body in log)}
    problem = wrong([*log, *aside])
    foreign = [f"{item} is of a history that was left" for item in story.foreign]
    return [*([problem] if problem else []), *foreign, *story.broken]


def many(seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Return a row for each shape of job: its cuts, its restores, and the work that these lost."""
    rows = list[dict[str, Any]]()
    chosen = tuple(seeds)
    for shape, options in SHAPES.items():
        stories = {seed: CutStory(seed, **options) for seed in chosen}
        problems_by_seed = {seed: bad for seed, story in stories.items() if (bad := problems(story))}
        all_stories = stories.values()
        rows.append(
            {
                "prompts from": shape,
                "schedules": len(chosen),
                "cuts": sum(story.cuts for story in all_stories),
                "restores": sum(story.restores for story in all_stories),
                "passed over": sum(story.passed for story in all_stories),
                "set aside": sum(len(story.aside) for story in all_stories),
                "lost per restore": round(
                    sum(story.lost for story in all_stories) / max(1, sum(story.restores for story in all_stories)), 2
                ),
                "problems": [f"seed {seed}: {line}" for seed, bad in problems_by_seed.items() for line in bad],
            }
        )
    return rows
