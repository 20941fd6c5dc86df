"""ElasticMaster: the torch store of one role, in a process of its own, so that no rank's death takes it along.

Ranks of a thread host meet under a prefix per generation. Scripts meet under names of their own, so the first rank of
a new generation asks here for an empty store; the address stays the same.
"""

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


class ElasticMaster(Host):
    """A host without ranks: `hello().address` is where its store serves."""

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self._ip: str = ray.util.get_node_ip_address()
        self._listener = socket.create_server((self._ip, 0), backlog=1024)
        self._port: int = self._listener.getsockname()[1]
        self._store: Any = None
        self._open(0)
        threading.Thread(target=self._renewals, name="dljob-store", daemon=True).start()

    def address(self) -> str:
        """Where the store serves, for all generations."""
        return f"{self._ip}:{self._port}"

    def start_ranks(self, order: StartOrder) -> None:
        """A store has no ranks to start; a new generation empties it when its first rank comes."""

    def stop_ranks(self, order: StopOrder) -> None:
        """A store has no ranks to stop."""

    def _open(self, generation: int) -> None:
        """Replace the store by an empty one on the same listening socket; connections to the old one break."""
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
        self._store.set(GENERATION_KEY, str(generation))

    def _renewals(self) -> None:
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        while True:
            client: TCPStore | None = TCPStore(self._ip, self._port, None, is_master=False, timeout=FOR_EVER)
            client.wait([NEXT_KEY], FOR_EVER)
            generation = int(client.get(NEXT_KEY))
            client = None
            self._open(generation)
