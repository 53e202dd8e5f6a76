"""To test a method of your own: federations of a few numbers, tiny whole runs, and the checks
that every method of Konsil is held to. Nothing here needs pytest.

    from konsil import testing

    def test_an_update_by_hand():
        data = {"north": testing.points([[0, 255]], [1]), "south": testing.points([[255, 0]], [0])}
        federation = testing.Linear("my-method", data)
        after = federation.round({"global": federation.weights(0.5, -0.5, 0.1)})

    testing.check_method("my_method.py")
"""

from konsil.testing.checks import CHECKS, Trial, check_method
from konsil.testing.linear import Linear, Regression, means, points
from konsil.testing.runs import (
    SIZE,
    Shuffled,
    Tampered,
    plan_of,
    same_parts,
    same_record,
    server,
    state_of,
    train,
    what_remains,
    whole_run,
    write_shades,
    write_squares,
)

__all__ = [
    "CHECKS", "SIZE", "Linear", "Regression", "Shuffled", "Tampered", "Trial", "check_method",
    "means", "plan_of", "points", "same_parts", "same_record", "server", "state_of", "train",
    "what_remains", "whole_run", "write_shades", "write_squares",
]  # fmt: skip
