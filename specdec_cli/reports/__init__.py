"""Records in, something to read out. No torch."""
