"""TensorBoard and MLflow beside a run, or after it: `konsil run --track`, `konsil track`.

Trackers read what the run writes down anyway (events.jsonl), in a thread of their own: no training
waits for them, and one that fails is left alone. What they have already is not written twice, so a
run that goes on, or one that is tracked afterwards, is complete.
"""
