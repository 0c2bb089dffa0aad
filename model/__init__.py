"""From published weights to a servable artifact: define, load, export, prove."""
