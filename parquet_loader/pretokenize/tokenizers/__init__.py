"""Text to token ids."""
