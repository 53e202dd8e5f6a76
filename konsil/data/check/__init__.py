"""A look at all data before training: what is there, what is wrong, what is odd."""
