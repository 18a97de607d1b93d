"""The mathematics: tensors in, tensors out. Knows no model, file, data set or device policy."""
