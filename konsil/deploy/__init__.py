"""Between hospitals: what is agreed on, what a site refuses, and who runs where.

Nothing here but `konsil.deploy.flare` and the files that start it knows NVIDIA FLARE; nothing
here knows a method.
"""
