"""Pictures of what a model hears in a recording."""
