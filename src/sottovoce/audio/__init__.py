"""Audio: recordings in, log-mel features out; voice activity; the sample buffer of a live stream."""
