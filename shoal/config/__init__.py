"""Configuration: schema, loading and overrides, and the dialects of other tools."""
