"""Calls of DLRover's builders that dljob does not have, and their replacements."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

UNSUPPORTED = {
    "as_task_stream": "in DLRover it changes nothing; leave the call out",
    "as_data_stream": "in DLRover it changes nothing; leave the call out",
    "sub_stage": "DLRover keeps it and reads it nowhere; leave the call out",
    "by_dlrover_run_cmd": "give the line to `dljob torchrun`, which knows all of torchrun's arguments",
    "enable_node_group_failover": "machines are left one by one, each for its own fault; see .lost_nodes()",
}
"""Name of the call -> what to do instead."""


class UnsupportedCalls:
    """Base of the builders, whose error for a missing method says what replaces DLRover's."""

    if not TYPE_CHECKING:  # a type checker must keep finding misspelt names by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Raise with the replacement of a call of DLRover.

            Raises:
                AttributeError: always; Python asks here only for names that do not exist.
            """
            message = f"{type(self).__name__} has no {name!r}"
            raise AttributeError(
                f"{message}: {UNSUPPORTED[name]}" if name in UNSUPPORTED else message, name=name, obj=self
            )
