"""First-party plugins: loggers, one file each."""
