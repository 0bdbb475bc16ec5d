"""First-party plugins: workflows, one file each."""
