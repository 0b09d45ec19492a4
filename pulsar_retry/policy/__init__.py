"""Pure decisions: what to do with a message that failed, and when it comes back.

Nothing here knows of a broker, a clock or a thread.
"""
