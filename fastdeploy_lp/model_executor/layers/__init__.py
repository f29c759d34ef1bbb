"""The layers that model files are written with."""
