"""First-party plugins: algorithms, one file each."""
