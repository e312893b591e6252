"""Speech to text that follows the speaker across languages."""
