"""First-party plugins: filters, one file each."""
