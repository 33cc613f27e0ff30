"""The optimizers that the article compares with, and its alternating minimisation."""
