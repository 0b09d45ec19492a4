"""The parts of a cluster's REST API that this package uses: typed, thread-safe, blocking."""
