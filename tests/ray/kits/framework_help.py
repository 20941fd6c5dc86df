"""A module beside a program, imported by the program's tasks and actors."""


def doubled(x: int) -> int:
    return 2 * x
