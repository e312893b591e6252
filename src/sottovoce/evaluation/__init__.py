"""Scores of transcripts and of live sessions: word error, latency, languages, speakers, speed."""
