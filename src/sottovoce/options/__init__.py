"""Every option, declared once: help, range, flag, and names in the server's APIs.

The dataclasses are the Python API; the command line, forms, OpenAPI and tables of the docs are generated from
their fields. PyTorch and NumPy are not imported here, so that `--help` is fast.
"""
