class GetTimeoutError(TimeoutError):
    """What `worker.late` raises."""
