"""Which documents are kept."""
