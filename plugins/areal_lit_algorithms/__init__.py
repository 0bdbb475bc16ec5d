"""First-party plugins: algorithms, one file each; what they are put together from is in ``pieces``."""
