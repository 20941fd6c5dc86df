"""A stand-in for openYuanrong's ray-adapter, in its shape: it imports itself by its own name."""

from ray_adapter.actor import ActorHandle
from ray_adapter.worker import group_of, init, make

__all__ = ["ActorHandle", "group_of", "init", "make"]
