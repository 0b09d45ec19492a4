"""Redrives: dead letters are published again."""
