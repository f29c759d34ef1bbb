"""State of requests through steps and slots, and the random numbers that belong to it."""
