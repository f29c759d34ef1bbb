"""HTTP routes other than chat and completions, one file per topic."""
