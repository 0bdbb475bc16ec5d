"""First-party plugins: optimizers, one file each."""
