"""Hydra, seen from the rest of the program: overrides in, a checked RunConfig out.

Importing this module imports Hydra (about 0.15 s); only the launcher and the CLI verbs that need a
configuration do so.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gbactl.config import RunConfig, from_dict
from gbactl.errors import ConfigError, GbactlError, UsageError
from gbactl.paths import conf_dir

ROOT_CONFIG = "train"


def to_run_config(cfg: DictConfig) -> RunConfig:
    """Resolve interpolations and check the schema. Raises ConfigError."""
    try:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error)) from error
    assert isinstance(values, dict)
    return from_dict({str(k): v for k, v in values.items() if k != "hydra"})


def compose(overrides: list[str]) -> RunConfig:
    """Compose conf/train.yaml with Hydra overrides. Raises UsageError with what can be typed."""
    with _explained():
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            return to_run_config(hydra.compose(ROOT_CONFIG, overrides=overrides))


def run_hydra(arguments: list[str], job: Callable[[RunConfig], Any]) -> None:
    """Hand a command line to Hydra: single runs, --multirun, --cfg, --info as Hydra does them."""

    def task(cfg: DictConfig) -> Any:
        try:
            return job(to_run_config(cfg))
        except GbactlError as error:
            # Hydra prints a line of its own for an exception; this one is told by the command line
            failed.append(error)
            return None

    # Hydra derives its job name from sys.argv and prints tracebacks itself unless told not to.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=ROOT_CONFIG)(task)
    failed: list[GbactlError] = []
    saved, sys.argv = sys.argv, ["gbactl train", *arguments]
    try:
        with _explained():
            main()
    finally:
        sys.argv = saved
    if failed:
        raise failed[0]


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(_explain(error)) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _explain(error: BaseException) -> str:
    text = _one_line(error).split(" Config search path:")[0]
    if "is not in struct" in text or "Could not override" in text:
        return f"{text.split(' To append')[0].rstrip('.')}. Keys there are: {', '.join(known_keys())}."
    return text


def known_keys() -> list[str]:
    """Top-level keys and groups, then the nested keys of the schema."""
    from gbactl.config import flatten, to_dict

    return sorted(key for key in flatten(to_dict(RunConfig())) if key != "data") + ["data.*"]
