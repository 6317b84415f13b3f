"""What the model sees: samples as a loader gives them, drawn on a contact sheet or told on a page."""
