"""Who speaks when: turns of a recording, and which of its words belong to whom."""
