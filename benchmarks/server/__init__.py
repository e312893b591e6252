"""The server under load, and archives over processes and machines."""
