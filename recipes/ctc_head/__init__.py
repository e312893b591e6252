"""How the CTC head of Whisper base was made: a small network on the frozen encoder's states."""
