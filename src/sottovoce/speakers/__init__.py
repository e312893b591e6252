"""Speaker diarization: who speaks when in a recording or session, and which words belong to whom."""
