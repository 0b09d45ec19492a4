"""Pure decisions: what happens to a message that failed, and when it is delivered again.

Nothing here uses a broker, a clock or a thread.
"""
