"""First-party plugins: rewards, one file each."""
