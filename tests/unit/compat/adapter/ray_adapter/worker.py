from ray_adapter.actor import ActorHandle
from ray_adapter.exceptions import GetTimeoutError
from ray_adapter.util.scheduling_strategies import PlacementGroupSchedulingStrategy


def init():
    return "adapter"


def make():
    return ActorHandle()


def late():
    raise GetTimeoutError


def group_of(strategy):
    """The real adapter drops a group in silence when this is False."""
    return strategy.group if isinstance(strategy, PlacementGroupSchedulingStrategy) else ""
