"""Programs that ``probe`` runs in processes of their own. What they find they print as JSON objects, a line each."""
