"""Dead letters to redrive, and subscriptions to seek and snapshot."""
