"""Speaker diarization of recordings and sessions."""
