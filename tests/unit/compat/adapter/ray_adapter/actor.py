class ActorHandle:
    """What `make` answers."""


class Creator:
    """Has the options of all instances of a class."""

    def __init__(self):
        self.__invoke_options__ = {"custom": {}}


class ActorClass:
    """Writes into what all share, and gives itself, as the real one does."""

    def __init__(self):
        self.__creator = Creator()
        self.__wrapper = None

    def options(self, *, name=None, resources=None):
        options = self.__creator.__invoke_options__
        options["name"] = name
        options["custom"].update(resources or {})
        self.__wrapper = options
        return self

    def remote(self):
        return self.__wrapper or self.__creator.__invoke_options__
