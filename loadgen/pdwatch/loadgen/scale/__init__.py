"""Several drivers as one: a leader, and workers on this machine or on others, over Locust's own message channel."""
