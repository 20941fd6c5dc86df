"""The backend `yr`: openYuanrong's SDK behind the protocol of `runtime.backend.interface`.

`backend` calls the SDK, `cell` is the one class whose instances it makes, `keys` is the key-value store on the
datasystem, `local` adds what the SDK's local mode lacks, `host` runs ranks without Ray. Nothing here imports `yr`
before it is used: the SDK takes 0.3 s to load, and may not be installed.
"""
