"""What benchmarks measure, how they compare it, and how they report it."""
