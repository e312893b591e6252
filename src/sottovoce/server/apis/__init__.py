"""The APIs that the server speaks: each file parses requests of one, and renders its answers."""
