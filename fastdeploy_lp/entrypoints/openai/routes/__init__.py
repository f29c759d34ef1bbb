"""HTTP routes, one file per topic: from validated bodies to answers, whole or as events of a stream."""
