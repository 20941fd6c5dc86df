"""What a host does for ranks that serve."""

from __future__ import annotations

import json
import socket
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from role_kit import role_plan

from dljob.master.state.actions import RankStart
from dljob.master.state.state import CLUSTER_NOT_GIVEN_YET
from dljob.master.state.views import Outcome, Reason
from dljob.plan.serving import ProbePlan, WeightsPlan
from dljob.plan.tensorflow import checksum
from dljob.runtime.process.messages import HostSpec, JobInfo, LoadOrder, Serves
from dljob.runtime.serving.monitor import ProbedRank
from dljob.runtime.serving.ports import HostPorts, PortTakenError
from dljob.runtime.serving.probes import ProbeTarget
from dljob.runtime.worker.serving import HostServing, port_taken
from dljob.runtime.worker.weights import HostWeights

START = RankStart(2, 1, 0, 1, 0)
NEVER = ProbePlan("tcp", port="1", delay_s=3600)


class Ranks:
    """A host that notes what is said of its ranks."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def serves(self, rank: int, incarnation: int, news: Serves) -> None:
        self.said.append((rank, incarnation, news))

    def ready(self, rank: int, incarnation: int) -> None:
        self.said.append((rank, incarnation, "ready"))

    def weights(self, rank: int, incarnation: int, news: Any) -> None:
        self.said.append((rank, incarnation, news))

    def call_method(self, name: str, args: Any) -> None:
        self.said.append((name, args))

    def unhealthy(self, rank: int, incarnation: int, outcome: Outcome) -> None:
        self.said.append((rank, incarnation, outcome))


class Line:
    """PrimeMaster, which knows one server, and never another one."""

    def ask(self, _what: str, args: Any, _timeout_s: float) -> Future[Any]:
        answer: Future[Any] = Future()
        if args == (None,):
            answer.set_result({"a-b": [{"rank": 0, "incarnation": 1, "addresses": {"http": "h:1", "rpc": "h:2"}}]})
        return answer


def serving(
    ranks: Ranks, *, job_dir: str = "", servers: tuple[str, ...] = (), address: str = "127.0.0.1", **role: Any
) -> HostServing:
    job = JobInfo("u", "j", job_dir, "dljob", "m", 30, 0.2, "", (), servers=servers)
    return HostServing(
        HostSpec(job, role_plan("r", **{"entrypoint": ("module", "m"), **role}), 1),
        lambda: address,
        lambda _rank: Line(),
        ranks,
    )


def test_a_rank_finds_its_address_and_its_ports():
    own = serving(Ranks(), ports=(("http", 0), ("side-car", 0)))
    env = own.environment(START)
    assert set(env) == {"DLJOB_HOST", "DLJOB_PORT_HTTP", "DLJOB_PORT_SIDE_CAR"}
    assert env["DLJOB_HOST"] == "127.0.0.1"
    assert serving(Ranks()).environment(START) == {}


def test_ranks_of_a_service_choose_the_same_port_in_pods_of_their_own(monkeypatch):
    def first(rank: int, **role: Any) -> str:
        seeds: list[str] = []
        monkeypatch.setattr(HostPorts, "take", lambda _, rank, ports, seed, before: seeds.append(seed) or {"http": 1})
        serving(Ranks(), ports=(("http", 0),), **role).environment(RankStart(rank, 1, 0, 1, 0))
        return seeds[0]

    assert first(0, service=True) == first(7, service=True)
    assert first(0) != first(7)


def test_a_rank_finds_the_servers_of_its_job(tmp_path):
    env = serving(Ranks(), job_dir=str(tmp_path), servers=("a-b",)).environment(START)
    assert env["DLJOB_ENDPOINTS_A_B"] == "h:1"
    (row,) = json.loads(Path(env["DLJOB_ENDPOINTS"]).read_text())["a-b"]
    assert row["addresses"] == {"http": "h:1", "rpc": "h:2"}
    assert [each.name for each in Path(env["DLJOB_ENDPOINTS"]).parent.iterdir()] == ["r-2.json"]


def test_a_port_of_the_last_process_is_taken_again():
    (port,) = (other := HostPorts()).take(0, [("http", 0)], "x", {}).values()
    other.take(0, [], "x", {})
    start = RankStart(2, 1, 0, 1, 0, ports=(("http", port),))
    assert serving(Ranks(), ports=(("http", 0),)).environment(start)["DLJOB_PORT_HTTP"] == str(port)


def test_a_rank_without_a_probe_serves_and_is_ready_at_once():
    ranks = Ranks()
    own = serving(ranks, ports=(("http", 0),), address="::1")
    port = own.environment(START)["DLJOB_PORT_HTTP"]
    own.started(START)
    own.ended(START)
    assert ranks.said == [(2, 1, Serves((("http", f"[::1]:{port}"),), ready=True)), (2, 1, "ready")]
    plain = Ranks()
    serving(plain).started(START)
    assert plain.said == [(2, 1, "ready")], "it serves nowhere"


def test_a_rank_with_a_probe_is_not_ready_before_it():
    ranks = Ranks()
    own = serving(ranks, readiness=NEVER)
    own.started(START, {"A": "b"})
    own.ended(START)
    assert ranks.said == []


def test_a_rank_is_reported_as_ready_once_and_as_serving_at_each_change():
    ranks, who = Ranks(), ProbedRank(2, 1)
    own = serving(ranks, readiness=NEVER)
    for ready in (True, False, True):
        own.serves(who, ready=ready, reason="said")
    assert [news if news == "ready" else news.ready for *_, news in ranks.said] == [True, "ready", False, True]


def test_connections_are_counted_where_the_least_busy_ranks_may_go():
    fixed = serving(Ranks(), ports=(("http", 0),))
    fixed.environment(START)
    assert fixed.connections() == {}
    fleet = serving(Ranks(), ports=(("http", 0),), min_replicas=1, max_replicas=2)
    env = fleet.environment(START)
    where = "127.0.0.1", int(env["DLJOB_PORT_HTTP"])
    with socket.create_server(where), socket.create_connection(where):
        assert fleet.connections() == {START.rank: 1}
        assert fleet.clients(START.rank) == 1
    assert serving(Ranks()).clients(START.rank) is None


def test_a_failed_probe_is_an_end_with_its_evidence():
    ranks = Ranks()
    serving(ranks).dead(ProbedRank(2, 1), "liveness probe failed 3 times, last: GET /: status 500")
    ((_, _, outcome),) = ranks.said
    assert outcome.reason is Reason.UNHEALTHY
    assert [clue.text for clue in outcome.clues] == [outcome.message]


def test_a_taken_port_is_the_end_of_a_rank():
    (port,) = (other := HostPorts()).take(0, [("http", 0)], "x", {}).values()
    with pytest.raises(PortTakenError) as error:
        serving(Ranks(), ports=(("http", port),)).environment(START)
    said = port_taken(error.value)
    assert (said.ok, said.error_type) == (False, "PortTakenError")
    assert f"port {port}" in said.message
    other.take(0, [], "x", {})


def test_the_request_of_a_drain_goes_to_the_rank():
    own = serving(Ranks(), ports=(("http", 0),))
    port = own.environment(START)["DLJOB_PORT_HTTP"]
    request = ProbePlan("post", port="http", path="/drain")
    assert own.post(2, request).words.startswith(f"POST /drain at 127.0.0.1:{port}: ")
    assert not serving(Ranks()).post(2, ProbePlan("post", port="1")).ok


class MeetingLine:
    """PrimeMaster, which knows all addresses at the second question, or never."""

    def __init__(self, *answers: dict[str, list[str]]) -> None:
        self.answers = list(answers)
        self.asked: list[Future[Any]] = []

    def ask(self, what: str, args: Any, _timeout_s: float) -> Future[Any]:
        assert (what, args) == ("tf_cluster", ({},))
        self.asked.append(answer := Future())
        if self.answers:
            answer.set_result(self.answers.pop(0))
        return answer


def meeting(ranks: Ranks, line: MeetingLine, **role: Any) -> HostServing:
    job = JobInfo("u", "j", "", "dljob", "m", 30, 0.2, "", ())
    spec = HostSpec(job, role_plan("r", **{"entrypoint": ("module", "m"), **role}), 1)
    return HostServing(spec, lambda: "127.0.0.1", lambda _rank: line, ranks)


def test_a_task_tells_its_address_and_starts_with_those_of_all():
    ranks, cluster = Ranks(), {"chief": ["h:1"], "ps": ["h:2"], "worker": ["h:3", "h:4", "h:5"]}
    host = meeting(ranks, MeetingLine({}, cluster), tf="worker", ports=(("tf", 0),))
    host.environment(START)
    met = host.meet(START, Future())
    assert met is not None
    assert json.loads(met["TF_CONFIG"]) == {"cluster": cluster, "task": {"type": "worker", "index": 2}}
    told = [(news.ready, news.cluster, len(news.addresses)) for _, _, news in ranks.said]
    assert told == [(False, CLUSTER_NOT_GIVEN_YET, 1), (False, checksum(cluster), 1)]
    assert meeting(ranks, MeetingLine()).meet(START, Future()) == {}, "a role that is no task asks nobody"


def test_an_evaluator_has_no_address_to_tell():
    ranks, cluster = Ranks(), {"chief": ["h:1"]}
    met = meeting(ranks, MeetingLine(cluster), tf="evaluator").meet(START, Future())
    assert met is not None
    assert json.loads(met["TF_CONFIG"])["task"] == {"type": "evaluator", "index": 2}
    assert ranks.said == []


def test_a_task_that_is_stopped_while_it_waits_does_not_start():
    line, stopped = MeetingLine(), Future[None]()
    stopped.set_result(None)
    host = meeting(Ranks(), line, tf="ps", ports=(("tf", 0),))
    host.environment(START)
    assert host.meet(START, stopped) is None
    assert line.asked[0].cancelled()


def test_references_to_servers_are_those_of_this_start(tmp_path):
    text = "--at={{roles.a-b.endpoints}}"
    role = {"args": (text,), "env": (("A", text),), "config": {"a": [text]}, "entrypoint": ("command", "run", text)}
    own = serving(Ranks(), job_dir=str(tmp_path), servers=("a-b",), **role).resolved(START).role
    said = "--at=h:1"
    assert (own.args, own.env, own.config) == ((said,), (("A", said),), {"a": [said]})
    assert own.entrypoint == ("command", "run", said)
    assert serving(Ranks(), args=(text,)).resolved(START).role.args == (text,), "a job without servers"


def test_a_role_with_weights_has_them_loaded_and_any_other_ignores_the_order(monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr(HostWeights, "started", lambda _self, start: seen.append(start))
    monkeypatch.setattr(HostWeights, "load", lambda _self, order: seen.append(order))
    order = LoadOrder(1, 2, 1, 7, 70.0)
    serving(Ranks()).load(order)
    own = serving(Ranks(), weights=WeightsPlan(("p",), 1, 1, NEVER))
    own.started(START, {"A": "b"})
    own.load(order)
    assert seen == [START, order]
    assert own.target(2, C="d") == ProbeTarget("127.0.0.1", {}, {"A": "b", "C": "d"}, "/")
