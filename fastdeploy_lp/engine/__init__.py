"""The API process's part: client and supervisor of the worker, tokenizer, chat template and detokenizer."""
