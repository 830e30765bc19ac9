"""Measures prefetching beside what it replaces, in one run."""
