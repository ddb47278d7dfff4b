"""Kernel families: how their inputs are made, what they must compute, and how far from it they may be."""
