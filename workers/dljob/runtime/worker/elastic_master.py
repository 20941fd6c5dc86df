"""ElasticMaster: the torch store of one role, in a process of its own, so that it survives the death of any rank."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import ray

from dljob.runtime.process.messages import HostSpec, StartOrder, StopOrder
from dljob.runtime.worker.host import Host
from dljob.runtime.worker.torch_group import GENERATION_KEY, NEXT_KEY

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

FOR_EVER = timedelta(days=3650)
"""A new generation may be days away; without a timeout of its own, a TCPStore client gives up after 300 s."""


class ElasticMaster(Host):
    """A host without ranks; `hello().address` is the address of its TCPStore."""

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self._store = RoleStore(ray.util.get_node_ip_address())

    def address(self) -> str:
        """Return host:port of the store, the same for all generations."""
        return self._store.address

    def start_ranks(self, order: StartOrder) -> None:
        """Do nothing: a store has no ranks. Its first rank of a new generation has it emptied, see `RoleStore`."""

    def stop_ranks(self, order: StopOrder) -> None:
        """Do nothing: a store has no ranks."""


class RoleStore:
    """A TCPStore on one address, emptied for each generation but the first.

    Ranks of thread hosts use a key prefix per generation. Scripts choose their own keys, so the first rank of a new
    generation asks for an empty store, see `torch_group.renew`. The first generation gets the store that is there:
    nobody has written to it, and torch prints a warning for each connection that breaks.
    """

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._listener = socket.create_server((ip, 0), backlog=1024)
        self._port: int = self._listener.getsockname()[1]
        self.address = f"{ip}:{self._port}"
        self._generation = -1
        self._store: Any = None
        self._open()
        threading.Thread(target=self._serve_renewals, name="dljob-store", daemon=True).start()

    def _open(self) -> None:
        """Replace the store by an empty one on the same listening socket; connections to the old store break."""
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        self._store = None
        self._store = TCPStore(
            self._ip,
            self._port,
            None,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._listener.dup().detach(),
        )
        self._store.set(GENERATION_KEY, str(self._generation))

    def _serve_renewals(self) -> None:
        """Serve requests of ranks for a new generation, for ever."""
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        while True:
            client: TCPStore | None = TCPStore(self._ip, self._port, None, is_master=False, timeout=FOR_EVER)
            client.wait([NEXT_KEY], FOR_EVER)
            generation = int(client.get(NEXT_KEY))
            client.delete_key(NEXT_KEY)  # a request that comes between these two lines is made again, see `renew`
            client = None
            if generation > self._generation:
                self._replace(generation)

    def _replace(self, generation: int) -> None:
        unused = self._generation < 0
        self._generation = generation
        if unused:
            self._store.set(GENERATION_KEY, str(generation))
        else:
            self._open()
