"""The work of a model in processes of its own, behind one server."""
