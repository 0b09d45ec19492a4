"""One request on one connection, over HTTP/1.1 and HTTP/2."""
