"""`python -m dljob` is `dljob`, as `python -m torch.distributed.run` is `torchrun`."""

from __future__ import annotations

from dljob.cli.main import main

if __name__ == "__main__":
    main()
