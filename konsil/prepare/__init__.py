"""What people do before training: find images, check them, look at them, import data sets."""
