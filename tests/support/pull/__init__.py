"""Handlers, and subscribers in processes of their own."""
