"""Records the journals beside it from the model in tests/unit/master: `python tests/replay/record.py NAME...`.

A name of cases/NAME.json is a case that the simulator found: its journal is what PrimeMaster writes down in it.

A recorded journal is kept as it is: record a new one for a new incident, never an old one again, unless the format's
version changes. What the core decides now may differ on purpose: then the times of its events are moved, as those of
`killed-with-its-neighbour` by 35 s when scripts whose peer failed were given 30 s to save, and those of `used-up` were
stretched by a fifth when three lives of up to 30 s became a crash loop. In `given-back-and-wanted-anew` lives 3 of role
e are 2 since one event that restarts the job restarts no role once more; `spare-where-nobody-is` has fewer restarts
since. In `killed-while-made` life 3 of host c/0 is 2 since a lost store leaves the hosts that wait for it as they are.
The words of the message in the last line, "expected", are those of today.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "unit" / "master"), str(HERE)]

from master_kit import UID, World, error, host, nodes  # noqa: E402
from replay_kit import summary  # noqa: E402

from dljob.master.persistence.codec import event_record  # noqa: E402
from dljob.master.state import events as ev  # noqa: E402
from dljob.master.state.views import Outcome, Reason  # noqa: E402
from dljob.plan.plan import plan  # noqa: E402
from dljob.spec.model import DLJobManifest  # noqa: E402
from dljob.telemetry.records import Header, encode_header, encode_line  # noqa: E402
from dljob.testing.simulate import report  # noqa: E402
from dljob.testing.simulate.drive import simulate  # noqa: E402
from dljob.testing.world.state import EPOCH_S  # noqa: E402
from dljob.testing.world.state import UID as SIM_UID  # noqa: E402

CLASS = {"class": "pkg.Class"}
GRPO = {
    "roles": [
        {"name": "coordinator", "entrypoint": CLASS, "dependsOn": [{"role": "trainer"}, {"role": "rollout"}]},
        {
            "name": "trainer",
            "type": "Elastic",
            "replicas": 2,
            "replicasPerGroup": 2,
            "driver": False,
            "entrypoint": CLASS,
        },
        {"name": "rollout", "replicas": 2, "driver": False, "entrypoint": CLASS},
        {"name": "reward", "driver": False, "entrypoint": CLASS},
    ],
    "faultTolerance": {"spares": {"processesPerNode": 1}},
}
WORKERS = {"roles": [{"name": "w", "replicas": 2, "entrypoint": CLASS}]}
GONE_TOO = Outcome(ok=False, reason=Reason.NODE_LOST, message="its node is gone")
LIMITED = {
    "roles": [{"name": "w", "replicas": 2, "entrypoint": CLASS, "restartPolicy": {"maxRestarts": 1}}],
    "faultTolerance": {"maxRestarts": 1},
}


def three_faults(world: World) -> None:
    """Kill a rollout, a trainer and PrimeMaster; the job runs to its end."""
    world.boot()
    for act in (lambda: world.kill("rollout", 1), lambda: world.kill("trainer", 1), world.crash_master):
        world.now += 15.0
        act()
        world.now += 0.25
        world.settle()
    world.end("coordinator", 0, Outcome(ok=True, result='{"reward": 0.98}'))
    world.settle()


def lost_node(world: World) -> None:
    """Lose a node, so that its units move; then lose another, so that no room is left."""
    world.boot()
    for _ in range(2):
        world.now += 20.0
        world.lose_node(world.state.units["w/0"].node)
        world.settle()
    while world.state.verdict is None:
        world.tick()
    world.settle()


def used_up(world: World) -> None:
    """Use up the role's restart budget, then the job's."""
    world.boot()
    while world.state.verdict is None:
        world.now += 36.0
        world.kill("w", 1)
        world.settle()
        while world.state.incidents:
            world.tick()
            world.settle()


def same_error(world: World) -> None:
    """Lose a host that never comes up, then raise the same error twice without progress."""
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.views))
    world.deliver()
    world.deliver()
    world.kill_host(host("w", 1))
    world.settle()
    for step in (4, 4):
        world.now += 10.0
        world.end("w", 0, error(step=step))
        world.settle()
        while world.state.incidents:
            world.tick()
            world.settle()


def with_its_node(world: World) -> None:
    """Lose a host with its node, reported before the node list changes; its neighbour moves at once."""
    world.boot()
    world.now += 20.0
    node = world.state.units["w/0"].node
    world.lose_node(node)
    world.pending.clear()
    for index in (0, 1):
        if world.state.hosts[host("w", index)].node == node:
            world.send(ev.HostLost(host("w", index), 1, GONE_TOO))
    world.send(ev.NodesSeen(world.seen()), after=0.2)
    world.settle()
    for index in (0, 1):
        world.end("w", index, Outcome(ok=True))
    world.settle()


JOURNALS = {
    "three-faults": (GRPO, 2, three_faults),
    "lost-node": (WORKERS, 3, lost_node),
    "used-up": (LIMITED, 1, used_up),
    "same-error": (WORKERS, 1, same_error),
    "with-its-node": (WORKERS, 2, with_its_node),
}


def record(name: str) -> None:
    """Write one journal."""
    spec, count, story = JOURNALS[name]
    document = {"metadata": {"name": name}, "spec": spec}
    manifest = DLJobManifest.model_validate(document)
    cpus = 1 if name == "lost-node" else 64
    world = World((plan(manifest), manifest.spec), views=nodes(count, cpus=cpus))
    story(world)
    state = world.state
    expected = summary(state)
    begin = {"k": "begin", "at": world.start, "uid": UID, "manifest": document}
    write(name, [begin, *world.journal, {"k": "expected", **expected}])


def record_case(name: str) -> None:
    """Write the journal of a simulated case."""
    case = report.load(json.loads((HERE / "cases" / f"{name}.json").read_text()))
    world = simulate(case).world
    begin = {"k": "begin", "at": EPOCH_S, "uid": SIM_UID, "manifest": case.manifest, "ownNodes": case.own_nodes}
    events = (event_record(event, at) for at, event in world.journal)
    write(name, [begin, *events, {"k": "expected", **summary(world.known)}])


def write(name: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records as a journal."""
    lines = (encode_line(number + 1, item) for number, item in enumerate(records))
    (HERE / f"{name}.jsonl").write_bytes(encode_header(Header(1)) + b"".join(lines))


if __name__ == "__main__":
    for wanted in sys.argv[1:] or JOURNALS:
        if wanted in JOURNALS:
            record(wanted)
        else:
            record_case(wanted)
