"""Pictures of a recording: its features, speech, languages, attention and words."""
