"""Configuration: one frozen tree, the server's options beside it, their table, loading with nearest-name hints,
profiles and the feature table.

Decides what the options left unset become (`resolve_knobs`, each with its reason) and which features go together
(`check_features`). May import contracts and errors; never torch. Environment variables are read in `env` alone.
"""

from __future__ import annotations

from paceline.config.env import ENV_NAMES, Environment, child_environment, prepare_process, read_environment
from paceline.config.features import check_features, feature_matrix, features_of, matrix_rows
from paceline.config.load import load_config, load_server_config, parse_assignment
from paceline.config.options import Option, full_table, option_table, server_table
from paceline.config.profiles import Derived, Knobs, resolve_knobs
from paceline.config.server import ServerConfig
from paceline.config.tree import (
    GROUPS,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    Group,
    ModelConfig,
    Profile,
    SchedulingConfig,
)

__all__ = [
    "ENV_NAMES",
    "GROUPS",
    "CacheConfig",
    "Derived",
    "DeviceConfig",
    "EngineConfig",
    "Environment",
    "Group",
    "Knobs",
    "ModelConfig",
    "Option",
    "Profile",
    "SchedulingConfig",
    "ServerConfig",
    "check_features",
    "child_environment",
    "feature_matrix",
    "features_of",
    "full_table",
    "load_config",
    "load_server_config",
    "matrix_rows",
    "option_table",
    "parse_assignment",
    "prepare_process",
    "read_environment",
    "resolve_knobs",
    "server_table",
]
