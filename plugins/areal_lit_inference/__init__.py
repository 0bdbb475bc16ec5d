"""First-party plugins: inference, one file each."""
