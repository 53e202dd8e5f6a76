"""The data side: federations from folders, CSV files and generators, as arrays on disk.

`open_federation` finds, checks, splits and decodes. Training code gets `TrainingData`, which has
no test images and no way to them; `test_images` is for evaluation alone.
"""

from konsil.data.augment import augment_light
from konsil.data.federation import Federation, open_federation
from konsil.data.images import Images, TrainingData, test_images, training_data

__all__ = [
    "Federation",
    "Images",
    "TrainingData",
    "augment_light",
    "open_federation",
    "test_images",
    "training_data",
]
