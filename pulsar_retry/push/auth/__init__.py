"""Who posts: tokens and signatures, made and verified."""
