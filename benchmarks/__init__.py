"""Measurements: `python -m benchmarks` lists them, `python -m benchmarks ROOM NAME --help` explains one."""
