"""One file per method: what the server of that method does."""
