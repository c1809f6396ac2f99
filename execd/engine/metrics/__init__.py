"""What the engine counts, and the figures that the engine reports."""
