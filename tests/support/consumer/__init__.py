"""Messages, programs and models for tests of the consumer."""
