"""Run things again to learn more."""
