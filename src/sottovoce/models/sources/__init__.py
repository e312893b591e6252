"""Sources of weights: names, the Hugging Face hub, the package index, and caches. Nothing here imports
PyTorch.
"""
