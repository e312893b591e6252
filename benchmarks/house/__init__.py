"""The shape of the source itself."""
