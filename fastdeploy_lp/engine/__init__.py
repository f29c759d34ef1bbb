"""The API process's half: the worker's client and supervisor, tokenizer, chat template and detokenizer."""
