"""The HTTP side of an embedded worker."""
