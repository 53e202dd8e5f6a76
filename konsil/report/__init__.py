"""Tables and pictures of a run."""
