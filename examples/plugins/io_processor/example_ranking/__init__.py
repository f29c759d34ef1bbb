"""An IO processor as a plugin: `--io-processor-plugin example_ranking` chooses it."""


def register() -> str:
    """The name of its class, which is imported by the server that chooses it and by no other."""
    return "example_ranking.ranking:Ranking"
