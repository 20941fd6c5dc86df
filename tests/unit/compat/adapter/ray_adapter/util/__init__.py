from ray_adapter.util.placement_group import placement_group

__all__ = ["placement_group"]
