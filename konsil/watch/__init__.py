"""`konsil watch`: what a run's folder tells while the run goes on. It reads, and never writes."""
