"""Parallel mode: several languages decoded at once, a decoder row each, merged by the language timeline."""
