"""A stand-in for openYuanrong's ray-adapter, in its shape: it imports itself by its own name."""

from ray_adapter import util
from ray_adapter.actor import ActorClass, ActorHandle
from ray_adapter.worker import group_of, init, make

__all__ = ["ActorClass", "ActorHandle", "group_of", "init", "make", "util"]
