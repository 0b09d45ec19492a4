"""What tests of applications that use this package need; shipped to users.

`pulsar_retry.testing.broker` gives a real Pulsar.
"""
