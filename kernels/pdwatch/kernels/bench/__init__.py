"""How fast the kernels are, beside what would be used otherwise, and which bars they hold."""
