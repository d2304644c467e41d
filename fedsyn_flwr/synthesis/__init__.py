"""Making synthetic images: inversion and the pool."""
