"""HTTP/1.1 and HTTP/2 connections, each for one request at a time."""
