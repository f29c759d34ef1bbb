"""Model families computed by PaddleFormers with this package's paged attention."""
