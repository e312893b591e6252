"""Which language is spoken when: probe, smoothing, switching."""
