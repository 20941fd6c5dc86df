"""Names that users see, and the records of the journal, as data. No behaviour, no I/O."""
