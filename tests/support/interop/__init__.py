"""Clients in several languages, behind one interface."""
