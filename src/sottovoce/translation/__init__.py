"""Translate transcripts and live speech: by a server with a chat endpoint, or by Whisper's own task into
English.
"""
