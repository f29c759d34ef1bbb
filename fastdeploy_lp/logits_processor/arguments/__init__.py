"""Arguments of processors in a request: their forms, values and checks."""
