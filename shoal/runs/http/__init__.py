"""What every HTTP service of this package shares: who may ask, limits, how it listens."""
