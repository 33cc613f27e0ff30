"""The optimizers that the article compares with."""
