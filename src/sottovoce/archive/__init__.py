"""Many recordings into rows of one table, which goes on after a crash where it stopped."""
