"""The import path in FastDeploy's documents."""
