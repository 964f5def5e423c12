"""Earlier work, and the paper as printed, with the mechanisms that only they use; loaded when asked for by name."""
