"""Konsil: personalised federated learning for medical imaging."""

__version__ = "0.1.0"
