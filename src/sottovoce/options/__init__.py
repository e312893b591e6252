"""Every option once: its help, range, flag, and names in APIs of the server.

The dataclasses of this package are the Python API; command line, forms, OpenAPI and tables of the docs are
made from their fields. PyTorch and NumPy are not imported here, so that `--help` is quick.
"""
