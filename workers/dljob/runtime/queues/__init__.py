"""DataQueue: a queue between ranks whose items are on disk at the head.

`data_queue` is for users; `storage_client` and `session` are the rank's side; `keeper`, `store`, `files` the actor's.
"""
