"""The version, apart from the front door: what is inside may ask for it."""

__version__ = "0.2.0"
