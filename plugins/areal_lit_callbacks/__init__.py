"""First-party plugins: callbacks, one file each."""
