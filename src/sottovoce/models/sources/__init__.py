"""Sources of weights: names, the Hugging Face hub, the package index, and their caches.

Nothing here imports PyTorch, so that lists and downloads are fast.
"""
