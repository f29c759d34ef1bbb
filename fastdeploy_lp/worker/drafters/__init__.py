"""Draft tokens: one file per source, and the choice of what a step verifies."""
