"""Translation of transcripts and live speech: by a server with a chat endpoint, or into English by
Whisper.
"""
