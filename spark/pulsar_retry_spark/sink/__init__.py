"""Failed rows to topics: where each goes, and who sends it."""
