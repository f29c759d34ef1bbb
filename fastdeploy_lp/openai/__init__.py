"""The import path that FastDeploy's documents use."""
