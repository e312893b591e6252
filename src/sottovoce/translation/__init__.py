"""What was said, in another language: by a server with a chat endpoint, sentence by sentence."""
