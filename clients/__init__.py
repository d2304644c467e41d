"""One file per method: what a client of that method does."""
