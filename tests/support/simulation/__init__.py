"""A whole platform in one process, under a scheduler that a seed decides: the same seed is the same life."""
