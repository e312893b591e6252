"""Runtimes: how a model is called, by one caller or many, in PyTorch or with native kernels."""
