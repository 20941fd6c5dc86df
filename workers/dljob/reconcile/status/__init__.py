"""The status after a pass: `status`, `conditions`, `phases`, `cluster`; `events` tells what changed."""
