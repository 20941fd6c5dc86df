"""The status after a pass: `status`, `conditions`, `phases`, `cluster`; `events` compares it with the old one."""
