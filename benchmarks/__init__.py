"""Measurements: `python -m benchmarks` lists them, `python -m benchmarks TOPIC NAME --help` explains one."""
