"""`dlrover.python.unified.util.config_util`, and the config that a rank finds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, cast


class UserConfig(dict[str, Any]):
    """A config with attributes, for environments without omegaconf."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the config has no {name!r}; it has {', '.join(self)}") from None


def config_object(value: object) -> Any:
    """Return a config as DLRover's ranks find it: a DictConfig, or a UserConfig where omegaconf is not installed."""
    if not isinstance(value, Mapping):
        return value
    named = cast("Mapping[str, Any]", value)
    if find_spec("omegaconf") is None:
        return _attributes(named)
    from omegaconf import OmegaConf

    # Parsed arguments hold objects of any class, which a DictConfig refuses without this flag.
    return named if OmegaConf.is_config(named) else OmegaConf.create(dict(named), flags={"allow_objects": True})


def _attributes(value: object) -> Any:
    if isinstance(value, Mapping):
        named = cast("Mapping[str, object]", value)
        return UserConfig({key: _attributes(part) for key, part in named.items()})
    if isinstance(value, list | tuple):
        return [_attributes(part) for part in cast("list[object]", value)]
    return value


def args_2_omega_conf(args: argparse.Namespace) -> Any:
    """Convert parsed arguments to a config."""
    return config_object(vars(args))


def omega_conf_2_args(conf: Mapping[str, Any]) -> argparse.Namespace:
    """Convert a config to a Namespace."""
    return argparse.Namespace(**{str(key): conf[key] for key in conf})


def convert_str_values(config: Any, convert_none: bool = True, convert_digit: bool = True) -> None:  # noqa: FBT001, FBT002
    """Convert text in a config to None and numbers, in place."""
    if not hasattr(config, "keys") and not hasattr(config, "append"):
        return
    keys: Any = list(config.keys()) if hasattr(config, "keys") else range(len(config))
    for key in keys:
        if isinstance(config[key], str):
            config[key] = _converted(config[key], none=convert_none, digits=convert_digit)
        else:
            convert_str_values(config[key], convert_none, convert_digit)


def _converted(text: str, *, none: bool, digits: bool) -> object:
    if none and text == "None":
        return None
    if not digits:
        return text
    if text.isdigit():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def read_dict_from_envs(prefix: str) -> dict[str, str]:
    """Return the environment variables with a prefix, by their names in lower case without it."""
    return {name[len(prefix) :].lower(): value for name, value in os.environ.items() if name.startswith(prefix)}
