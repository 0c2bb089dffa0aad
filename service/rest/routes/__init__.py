"""Routes of the REST APIs, one file per API."""
