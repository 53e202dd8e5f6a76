"""A super model for others' programs: ONNX, a MONAI bundle, weights in 16 bit.

What leaves here was held against the model it was made of, or it does not leave.
"""
