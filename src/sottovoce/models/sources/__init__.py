"""Where weights come from: names, the Hugging Face hub, the package index, and the caches of both.

Nothing here reads a model, and nothing imports PyTorch: lists and downloads are quick.
"""
