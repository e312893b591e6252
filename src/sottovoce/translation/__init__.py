"""Translation of transcripts and live speech."""
