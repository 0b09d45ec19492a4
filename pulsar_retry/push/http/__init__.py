"""HTTP/1.1 connections, each for one request at a time."""
