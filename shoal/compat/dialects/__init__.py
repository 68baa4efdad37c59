"""Dialects: the config keys of other tools, each a class `Dialect` of shoal.config.dialect."""
