"""Parameter servers: rows and dense parameters in separate processes, reached by ZeroMQ."""
