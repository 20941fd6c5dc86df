"""A module beside the program, which its tasks and actors import."""


def doubled(x: int) -> int:
    return 2 * x
