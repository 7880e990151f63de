"""The typed schema of a run's configuration, and the rules between its fields.

Only the launcher composes and checks; every other process reads the resolved result.
"""

from gbactl.config.groups import (
    CheckpointConfig,
    ClusterConfig,
    CollectiveConfig,
    FaultsConfig,
    ModeConfig,
    ModelConfig,
    OptimConfig,
    ScheduleConfig,
    SwitchConfig,
    TrackingConfig,
    TrainConfig,
    TransportConfig,
)
from gbactl.config.plain import flatten, from_dict, mode_values, to_dict
from gbactl.config.rules import ROW_L2_SCOPES, check, check_switch
from gbactl.config.run import RunConfig

__all__ = [
    "ROW_L2_SCOPES",
    "CheckpointConfig",
    "ClusterConfig",
    "CollectiveConfig",
    "FaultsConfig",
    "ModeConfig",
    "ModelConfig",
    "OptimConfig",
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
    "to_dict",
]
