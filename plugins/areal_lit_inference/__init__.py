"""First-party plugins: inference, one file or package each."""
