"""First-party plugins: launchers, one file or package each."""
