"""Centralized training: all images in one place, which hospitals cannot do. The yardstick."""

from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import Averaged, Piece


@method("centralized", paper="the yardstick: pooled images")
class Centralized(Method):
    """One model trained on the pooled training images, as many epochs as the others."""

    pooled = True

    def pieces(self) -> list[Piece]:
        return [Averaged("centralized")]
