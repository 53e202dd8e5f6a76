"""What methods are composed of: terms, corrections, partitions, personalisers, server optimisers.

A method's file says which of these it takes and what its paper adds; what two methods share is
here once.
"""
