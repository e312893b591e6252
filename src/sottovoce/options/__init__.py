"""Every option once: its help, range, flag, names in other APIs, and what it needs.

The dataclasses of this room are the Python API; command line, forms, OpenAPI and tables of the docs are
made from their fields. PyTorch and NumPy are not imported here, so that `--help` is quick.
"""
