"""Konsil: personalised federated learning for medical imaging."""

__version__ = "0.2.0"
