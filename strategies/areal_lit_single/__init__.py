"""First-party plugins: the strategy for one process."""
