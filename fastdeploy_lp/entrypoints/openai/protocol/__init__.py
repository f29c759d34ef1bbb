"""The OpenAI API's bodies, as far as this server speaks them: one file a kind of body."""
