"""Planted bugs: the harness is worth what it finds. Each mutant is a right kernel with one small mistake."""
