class ActorHandle:
    """What `make` answers."""
