"""Speaker diarization: speaker turns of a recording or session, and the speakers of words."""
