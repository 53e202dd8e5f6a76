"""A super model behind HTTP: a page for people, an API for programs, MONAI Label's for 3D Slicer.

Strangers' files are opened in worker processes that may only use so much memory and time
(`worker.py`, `pool.py`); the process that listens (`app.py`) parses no file and loads no model.
"""
