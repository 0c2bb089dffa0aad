"""`attendant evaluate`: an artifact on labeled texts."""
