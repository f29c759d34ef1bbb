"""Files of requests in the format of OpenAI's batches, answered one by one as the server would answer them."""
