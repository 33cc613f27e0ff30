"""How fast and how large: ratios against torch's own optimizers, measured side by side.

``make bench`` runs all of it; ``python -m benchmarks step memory`` runs a part.
"""
