"""Payloads as values that JSON can express, by the schema of their message. Pure.

Pulsar stores a schema beside a topic, as a type and a definition. Without a schema, a payload that
is JSON counts as JSON.
"""
