"""The model of a Kubernetes cluster: what befalls the pods of a node that is lost, and when."""

from __future__ import annotations

from dljob.testing.world.fault_schedule import chance
from dljob_operator.testing import kuberay_model
from dljob_operator.testing.api_server import CLUSTER, ApiServer
from dljob_operator.testing.kuberay_model import Nature
from dljob_operator.testing.virtual_time import Agenda


def test_pods_of_a_lost_node_are_first_not_ready_and_deleted_later() -> None:
    agenda = Agenda(100.0, chance("test"))
    server = ApiServer(agenda)
    nature = Nature(server, agenda, lambda _head: None)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    for name, node in (("lost", "n1"), ("other", "n2")):
        meta = {"name": name, "labels": {CLUSTER: "c"}}
        server.create("Pod", {"metadata": meta, "spec": {"nodeName": node}, "status": ready})

    def pods_at(seconds: float) -> list[tuple[bool, bool]]:
        agenda.run(100.0 + seconds, lambda: False)
        each = [server.get("Pod", name) for name in ("lost", "other")]
        return [(kuberay_model.is_ready(pod), kuberay_model.is_leaving(pod)) for pod in each]

    nature.lose_node("n1", excluded=60.0)
    late = kuberay_model.NOT_READY_S + kuberay_model.TOLERATED_S
    assert pods_at(kuberay_model.NOT_READY_S - 1) == [(True, False), (True, False)]
    assert pods_at(kuberay_model.NOT_READY_S + 1) == [(False, False), (True, False)]
    assert pods_at(late + 1) == [(False, True), (True, False)]
