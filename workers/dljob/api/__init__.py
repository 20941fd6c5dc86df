"""What a user's launching script imports: the builders, submit, and the handle of a job."""
