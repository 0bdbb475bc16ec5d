"""First-party plugins: transports, one file each."""
