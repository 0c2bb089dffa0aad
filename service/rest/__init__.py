"""HTTP: one file a door. Doors translate; they know no numpy, queue or session."""
