"""Which tests to run: those of a room, or those that a change can reach (`choice`), by what each file leads to."""
