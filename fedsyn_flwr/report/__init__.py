"""What a run left in its results folder, put into words, tables and pictures."""
