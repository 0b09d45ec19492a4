"""Notifications: webhooks that are told of new failures, and of failures that grow."""
