"""Causes in the network: names, routes, interfaces, and who else is at the other end."""

from __future__ import annotations

from cause import Cause
from planting import shell
from programs import in_group

ETH0 = {"GLOO_SOCKET_IFNAME": "eth0"}

CAUSES = (
    Cause(
        name="name-that-nobody-knows",
        group="network",
        program="""
    import socket
    socket.create_connection(("data.nowhere.example", 443), timeout=20)  # CAUSE
    """,
        kind="Network|name resolution|name or service not known",
        code=(13,),
        whom="default/0",
        says=("name resolution|Name or service not known",),
        exit_code=1,
        peers=True,
    ),
    Cause(
        name="host-without-a-route",
        group="network",
        program="""
    import socket
    socket.create_connection(("10.77.0.1", 443), timeout=20)  # CAUSE
    """,
        kind="Network|no route|unreachable",
        code=(13,),
        whom="default/0",
        says=("No route to host|unreachable",),
        exit_code=1,
    ),
    Cause(
        name="loopback-is-down",
        group="network",
        program="print('step', flush=True)",
        before="ip link set lo down",
        kind="loopback|127.0.0.1",
        code=(4, 13),
        whom="loopback|127.0.0.1",
        never="out of memory",
    ),
    Cause(
        name="interface-down-for-a-time",
        group="nothing wrong",
        program=in_group("pass", pause=0.2),
        ranks=2,
        env=ETH0,
        acts=(shell("ip link set eth0 down; sleep 15; ip link set eth0 up", after="step 20"),),
        kind="",
        ends=False,
        limit_s=60,
    ),
    Cause(
        name="server-of-data-that-closes",
        group="network",
        program="""
    import http.client, time
    client = http.client.HTTPConnection("127.0.0.1", 29778, timeout=10)
    for step in range(1000):
        client.request("GET", "/")
        client.getresponse().read()  # CAUSE
        print("step", step, flush=True)
        time.sleep(0.2)
    """,
        before="(python -m http.server 29778 --bind 127.0.0.1 >/dev/null 2>&1 & echo $! > server.pid); sleep 1",
        acts=(shell("kill -9 $(cat server.pid)", after="step 10"),),
        kind="UserError",
        whom="default/0",
        says=("ConnectionRefusedError|RemoteDisconnected|Connection reset",),
        exit_code=1,
    ),
    Cause(
        name="server-of-data-that-is-silent",
        group="network",
        program="""
    import http.client, time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 1000):
                client = http.client.HTTPConnection("127.0.0.1", 29779)
                client.request("GET", "/")
                client.getresponse().read()  # CAUSE
                print("step", step, flush=True)
                progress(step)
                time.sleep(0.2)
    """,
        roles="- {name: main, entrypoint: {class: work.Main}, resources: {cpu: 200m}}",
        before="(python -m http.server 29779 --bind 127.0.0.1 >/dev/null 2>&1 & echo $! > server.pid); sleep 1",
        acts=(shell("kill -STOP $(cat server.pid)", after="step 20"),),
        kind="Hang|has waited|waits|no step",
        whom="main/0",
        says=("socket|recv|read",),
        ends=False,
        limit_s=120,
    ),
    Cause(
        name="network-of-a-group-is-cut",
        group="network",
        program=in_group("pass", pause=0.2, more=", timeout=datetime.timedelta(seconds=30)"),
        ranks=2,
        env=ETH0,
        acts=(shell("ip address del 192.168.77.2/24 dev eth0; ip route flush cache", after="step 20"),),
        kind="Network|NodeFrozen|NodeLost|Hang|waits",
        whom=r"default/\d|node",
        ends=False,
        limit_s=120,
    ),
)
