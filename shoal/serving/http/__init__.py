"""Parts of every HTTP service of this package: admission, limits, connections, listening."""
