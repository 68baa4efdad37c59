"""Configuration: schema, loading and overrides, and what a dialect of another tool is."""

from shoal.config.errors import ConfigError
from shoal.config.intervals import Interval, parse_intervals
from shoal.config.loading import Command, ModelLookup, Resolved, load
from shoal.config.output import dump, json_schema, key_page, keys_with, show
from shoal.config.schema import Config
from shoal.config.sources import Origin

__all__ = [
    "Command",
    "Config",
    "ConfigError",
    "Interval",
    "ModelLookup",
    "Origin",
    "Resolved",
    "dump",
    "json_schema",
    "key_page",
    "keys_with",
    "load",
    "parse_intervals",
    "show",
]
