"""Every option, declared once: the dataclasses are the Python API; the command line, server and docs follow
from their fields. Imports neither PyTorch nor NumPy, so that `--help` is fast.
"""
