"""Laws of consistent cuts, over seeded schedules of faults: each prompt is trained exactly once.

The queues are the real pure ones (`Backlog`, `QueueCut`), with their clients' turns and stamps. A driver with a state
puts prompts, rollouts without a state answer them, a trainer with a state trains; each may die at any step, so may a
queue's process and PrimeMaster, and the head with all of them. The count is taken from the log in the trainer's state.
"""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest

from dljob.calls.backlog import Backlog, PutRefusal, Who
from dljob.calls.queue_cut import CutStamp, QueueCut

PROMPTS, SEEDS = 24, 250


@dataclass
class Queue:
    """A keeper: its backlog and bodies, which outlive its process, and a cut, which does not."""

    backlog: Backlog = field(default_factory=lambda: Backlog(6, 1 << 20))
    bodies: dict[int, Any] = field(default_factory=dict[int, Any])
    epoch: int = 0
    cut: QueueCut | None = None


@dataclass
class Client:
    """A process of a rank that uses queues, as `QueueSession` does."""

    name: str
    life: int
    stateful: bool
    epoch: int = 0
    taken: int = 0
    seen: int = 0
    puts: dict[str, int] = field(default_factory=dict[str, int])
    turns: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def stamp(self) -> CutStamp:
        return CutStamp(self.epoch, self.taken, self.seen)

    def who(self, queue: str) -> Who:
        return Who(self.name, self.life, f"{self.name}.{self.life}.{queue}")


class Job:
    """One job under a seeded schedule; `bug` plants a fault in the protocol."""

    def __init__(self, seed: int, bug: str = "") -> None:
        self.random, self.bug = random.Random(seed), bug  # noqa: S311 - a schedule
        self.queues = {"prompts": Queue(), "samples": Queue()}
        self.lives = Counter[str]()
        self.number, self.epoch = 0, 0
        self.kept: dict[str, Any] | None = None
        self.open: dict[str, Any] | None = None
        self.cuts = self.restores = 0
        self.rollouts = [self.client(f"rollout/{rank}", stateful=False) for rank in range(3)]
        self.holds: list[Any] = [None] * 3
        self.made_in = [0] * 3
        self.foreign = list[int]()
        """Samples that were accepted in another history than the one in which they were made."""
        self.begin({"sent": 0}, {"trained": []})

    def client(self, name: str, *, stateful: bool) -> Client:
        self.lives[name] += 1
        return Client(name, self.lives[name], stateful)

    def begin(self, driver: dict[str, Any], trainer: dict[str, Any]) -> None:
        self.driver, self.trainer = (self.client(name, stateful=True) for name in ("driver/0", "trainer/0"))
        self.sent, self.trained = driver["sent"], list(trainer["trained"])

    # -- the requests of clients

    def put(self, client: Client, name: str, body: Any) -> bool:
        queue, who = self.queues[name], client.who(name)
        if not queue.backlog.meet(who):
            return True
        if 0 < client.epoch <= queue.epoch and self.bug != "future":
            client.epoch = queue.epoch + 1
            return True
        number = client.puts.get(name, 0) + 1
        why = queue.backlog.refused(who, number, 1, str(body))
        if why is PutRefusal.FULL:
            return False
        client.puts[name] = number
        if why is None:
            item = queue.backlog.put(who, number, 1, str(body))
            queue.bodies[item] = body
            if name == "samples" and self.made_in[int(client.name[-1])] < self.epoch:
                self.foreign.append(body)
            if queue.cut is not None and queue.cut.is_before(who, self.seen_by(queue, client)):
                queue.cut.put(item, 1, str(body))
        self.learn(client, queue, ())
        return True

    def get(self, client: Client, name: str) -> Any:
        queue, who = self.queues[name], client.who(name)
        if not queue.backlog.meet(who):
            return None
        turn = client.turns.get(name, 0) + 1
        client.turns[name] = turn
        stamp = self.seen_by(queue, client)
        done = queue.backlog.begin_get(who, turn, turn - 1) or ()
        if queue.cut is not None and (queue.cut.is_before(who, stamp) or self.bug == "acknowledgement"):
            queue.cut.acknowledged(done)
        only = queue.cut.left if queue.cut is not None and queue.cut.hides(who, stamp) else None
        if not queue.backlog.ready(1, only):
            queue.backlog.take(who, 0, only)
            return None
        ids = queue.backlog.take(who, 1, only)
        self.learn(client, queue, ids)
        return queue.bodies[ids[0]]

    def seen_by(self, queue: Queue, client: Client) -> CutStamp:
        # A marker that is overtaken: the queue takes what follows it for something of before the cut.
        return CutStamp(client.epoch) if self.bug == "marker" else client.stamp

    def learn(self, client: Client, queue: Queue, ids: tuple[int, ...]) -> None:
        client.epoch = max(client.epoch, queue.epoch + 1)
        if queue.cut is not None and queue.cut.taints(ids):
            client.seen = max(client.seen, queue.cut.number)

    # -- what ranks do

    def drive(self) -> None:
        if self.sent < PROMPTS and self.put(self.driver, "prompts", self.sent):
            self.sent += 1

    def roll(self, rank: int) -> None:
        client = self.rollouts[rank]
        if self.holds[rank] is None:
            self.holds[rank] = self.get(client, "prompts")
            self.made_in[rank] = self.epoch
        elif self.put(client, "samples", self.holds[rank]):
            self.holds[rank] = None

    def train(self) -> None:
        prompt = self.get(self.trainer, "samples")
        if prompt is not None:
            self.trained.append(prompt)

    # -- cuts

    def cut(self) -> None:
        """Do the next step of a cut: begin, the consumer's save, the other's, and the seal queue by queue."""
        if self.open is None:
            self.number += 1
            members = {self.driver.name: self.driver.life, self.trainer.name: self.trainer.life}
            for queue in self.queues.values():
                queue.cut = QueueCut.begun(self.number, members, queue.backlog)
            self.open = {"queues": {}}
        elif "trainer" not in self.open:
            self.save(self.trainer, "trainer", {"trained": list(self.trained)})
        elif "driver" not in self.open:
            self.save(self.driver, "driver", {"sent": self.sent})
        elif left := [name for name in self.queues if name not in self.open["queues"]]:
            name = self.random.choice(left)
            cut = self.queues[name].cut
            assert cut is not None
            cut.seal()
            self.open["queues"][name] = (dict(cut.left), list(cut.keys))
        else:
            self.kept, self.cuts = deepcopy(self.open), self.cuts + 1
            self.give_up()

    def save(self, client: Client, role: str, state: dict[str, Any]) -> None:
        assert self.open is not None
        client.taken = self.number
        for name, queue in self.queues.items():
            assert queue.cut is not None
            who = client.who(name)
            line = queue.backlog.lines.get(who.line)
            # The marker may come late: what follows it has its stamp, and is not taken for something before it.
            late = self.bug == "marker"
            if not late:
                assert queue.cut.mark(who, self.number, line.ids if line is not None else ())
        self.open[role] = state

    def give_up(self) -> None:
        self.open = None
        for queue in self.queues.values():
            queue.cut = None

    # -- faults

    def restore(self) -> None:
        """Take the ranks with a state and the queues back to the last cut, as after the loss of one of them."""
        self.give_up()
        self.epoch, self.restores = self.epoch + 1, self.restores + 1
        kept = self.kept or {"driver": {"sent": 0}, "trainer": {"trained": []}, "queues": {}}
        for name, queue in self.queues.items():
            left, keys = kept["queues"].get(name, ({}, []))
            queue.backlog.restore(left, keys, closed=False)
            queue.epoch = self.epoch
        self.begin(kept["driver"], kept["trainer"])

    def die(self, rank: int) -> None:
        """End a rollout: another process of the rank takes its place."""
        self.rollouts[rank] = self.client(f"rollout/{rank}", stateful=False)
        self.holds[rank] = None

    def lose_keeper(self) -> None:
        """End a queue's process: the items are on disk, the cut under way is not."""
        name = self.random.choice(list(self.queues))
        queue = self.queues[name]
        queue.backlog = Backlog.loaded(queue.backlog.dumped())
        self.give_up()

    def lose_master(self) -> None:
        """End PrimeMaster: it goes on with the cut that its journal has, and repeats the begin of one it has not."""
        if self.open is not None and not self.open.keys() & {"trainer"}:
            self.give_up()

    def lose_head(self) -> None:
        """Lose the head with all processes and queues: only the files of the last cut are left."""
        self.queues = {"prompts": Queue(), "samples": Queue()}
        for queue in self.queues.values():
            queue.backlog.next = 1000 * (self.restores + 1)
            queue.bodies = dict.fromkeys(())
        kept = self.kept or {"queues": {}}
        for name, queue in self.queues.items():
            queue.bodies = {item: self.bodies[name][item] for item in kept["queues"].get(name, ({}, []))[0]}
        for rank in range(3):
            self.die(rank)
        self.restore()

    def run(self) -> list[int]:
        """Go on until all is trained, under faults for a while; return the log of the trainer's state."""
        self.bodies: dict[str, dict[int, Any]] = {"prompts": {}, "samples": {}}
        for turn in range(6000):
            for name, queue in self.queues.items():
                self.bodies[name].update(queue.bodies)
            chance = self.random.random()
            if turn < 900 and chance < 0.035:
                faults = [self.restore, self.lose_keeper, self.lose_master, self.lose_head]
                faults += [lambda: self.die(self.random.randrange(3))] * 3
                self.random.choice(faults)()
            elif chance < 0.12:
                self.cut()
            else:
                work = [self.drive, self.train, *(lambda rank=rank: self.roll(rank) for rank in range(3))]
                self.random.choice(work)()
            if len(self.trained) >= PROMPTS and turn > 900:
                break
        return self.trained


def wrong(log: list[int]) -> str:
    """Say which prompts were trained twice or never."""
    count = Counter(log)
    twice, never = sorted(n for n in count if count[n] > 1), sorted(set(range(PROMPTS)) - count.keys())
    return f"twice {twice}, never {never}" if twice or never else ""


def test_each_prompt_is_trained_once_under_any_schedule():
    jobs = [Job(seed) for seed in range(SEEDS)]
    found = {seed: why for seed, one in enumerate(jobs) if (why := wrong(one.run()))}
    assert not found
    assert not [one.foreign for one in jobs if one.foreign]
    assert sum(one.cuts for one in jobs) > 5 * SEEDS
    assert sum(one.restores for one in jobs) > 5 * SEEDS


@pytest.mark.parametrize("bug", ["acknowledgement", "marker", "future"])
def test_a_planted_bug_is_found(bug):
    jobs = (Job(seed, bug) for seed in range(SEEDS))
    assert any(wrong(one.run()) or one.foreign for one in jobs)
