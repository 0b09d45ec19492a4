"""The claims of all processes of a subscription, in a topic of the cluster."""
