"""The command line: a file for each command. Modules import what is heavy in functions, so that `--help` is
fast.
"""
