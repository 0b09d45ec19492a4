"""The hand-off in C++, where it can be had; see `pulsar_retry.native.loading`."""
