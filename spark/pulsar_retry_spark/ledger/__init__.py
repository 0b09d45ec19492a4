"""Records that say where each row of a micro-batch went, and prove that no row is missing."""
