"""How the bundled model was made, and how to fine-tune a Whisper checkpoint on one's own manifest."""
