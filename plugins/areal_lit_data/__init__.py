"""First-party plugins: data, one file each."""
