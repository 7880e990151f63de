"""Typed schema of a run's configuration, and the rules between its fields.

Only the launcher composes and checks a configuration; every other process reads the resolved result.
"""

from gbactl.checked_dataclasses import flatten
from gbactl.checkpoint.costs_and_interval import CheckpointConfig
from gbactl.config.groups import (
    ClusterConfig,
    CollectiveConfig,
    ModeConfig,
    OptimConfig,
    SwitchConfig,
    TrackingConfig,
    TrainConfig,
    TransportConfig,
)
from gbactl.config.run_config import Round, RunConfig, mode_values, rounds, samples_of, to_dict
from gbactl.config.validation import check, check_switch, from_dict
from gbactl.faults.fault_plan import FaultsConfig
from gbactl.models import ModelConfig
from gbactl.store.optimizer_settings import ScheduleConfig

__all__ = [
    "CheckpointConfig",
    "ClusterConfig",
    "CollectiveConfig",
    "FaultsConfig",
    "ModeConfig",
    "ModelConfig",
    "OptimConfig",
    "Round",
    "RunConfig",
    "ScheduleConfig",
    "SwitchConfig",
    "TrackingConfig",
    "TrainConfig",
    "TransportConfig",
    "check",
    "check_switch",
    "flatten",
    "from_dict",
    "mode_values",
    "rounds",
    "samples_of",
    "to_dict",
]
