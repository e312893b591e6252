"""A text that is given and the recording in which it is said: when each word is, and where a phrase is."""
