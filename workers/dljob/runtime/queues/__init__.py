"""DataQueue.

`data_queue` is for users; `storage_client` and `session` are the rank's side; `keeper`, `store`, `files` the actor's.
"""
