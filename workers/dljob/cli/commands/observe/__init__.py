"""Commands that show jobs and change nothing."""
