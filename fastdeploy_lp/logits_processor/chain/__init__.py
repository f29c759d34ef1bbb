"""The chain of processors: entries, groups, faults, time limits and shadows."""
