"""HTTP servers to push to."""
