"""Calls of DLRover's builders that are not here, and what to do in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

NOT_HERE = {
    "as_task_stream": "in DLRover it changes nothing; leave the call out",
    "as_data_stream": "in DLRover it changes nothing; leave the call out",
    "sub_stage": "DLRover keeps it and reads it nowhere; leave the call out",
    "by_dlrover_run_cmd": "give the line to `dljob torchrun`, which knows all of torchrun's arguments",
    "enable_node_group_failover": "machines are left one by one, each for its own fault; see .lost_nodes()",
}
"""Calls of DLRover's builders -> what to do in their place."""


class NotHere:
    """A builder that says of an attribute which it has not what became of it."""

    if not TYPE_CHECKING:  # where a type checker names what is misspelt by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Say what DLRover's calls are here.

            Raises:
                AttributeError: always: it is asked for what is not there.
            """
            said = f"{type(self).__name__} has no {name!r}"
            raise AttributeError(f"{said}: {NOT_HERE[name]}" if name in NOT_HERE else said, name=name, obj=self)
