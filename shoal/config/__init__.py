"""Configuration: schema, loading and overrides, and the dialects of other tools."""

from shoal.config.errors import ConfigError
from shoal.config.intervals import Interval, parse_intervals
from shoal.config.loading import ModelLookup, Origin, Resolved, dump, json_schema, load, show
from shoal.config.schema import Config

__all__ = [
    "Config",
    "ConfigError",
    "Interval",
    "ModelLookup",
    "Origin",
    "Resolved",
    "dump",
    "json_schema",
    "load",
    "parse_intervals",
    "show",
]
