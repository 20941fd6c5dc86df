"""The backend `yr`: openYuanrong's SDK behind the protocol of `runtime.backend.interface`.

`backend` speaks to the SDK, `cell` is the one class whose instances it makes, `keys` is the key-value store on the
datasystem, `local` what the SDK's local mode lacks, `host` the host of ranks that needs no Ray. Nothing here imports
`yr` before it is used: the SDK takes 0.3 s to load, and may not be installed.
"""
