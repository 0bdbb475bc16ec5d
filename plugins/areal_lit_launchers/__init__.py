"""First-party plugins: launchers, one file each."""
