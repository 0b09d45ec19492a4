"""The clients of several languages behind one face."""
