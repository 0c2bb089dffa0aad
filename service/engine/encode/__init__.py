"""From token vectors to the vectors of a response."""
