"""First-party plugins: loggers, one file each; `trackers` is what those of experiment trackers share."""
