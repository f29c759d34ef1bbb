"""Limits of one request, in one place; docs/limits.md lists them.

A limit bounds the cost of a request before the engine accepts it: time on the event loop, and memory. Its later cost
is bounded by the context, the slots and the queue.
"""

from __future__ import annotations

# Sampling and stopping.
MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 4096
MAX_BAD_WORDS = 4096
MAX_BAD_WORD_CHARACTERS = 256
# Words and lists of token ids together: each word is one or two lists.
MAX_BAD_WORD_LISTS = 16_384
MAX_BAD_WORD_TOKENS = 2048
MAX_REPETITION_PENALTY = 1e6
MAX_CACHE_SALT = 1024

# Arguments of logits processors.
MAX_ARGUMENT_DEPTH = 32
MAX_ARGUMENT_VALUES = 65_536
MAX_LOGIT_BIAS = 4096
# Of one request, whose tokens processors take back; the tokens that a class may take back at once, and those that a
# rewind may ban.
MAX_REWINDS = 1000
MAX_REWIND = 1024
MAX_REWIND_BAN = 1024

# The form of an output.
MAX_CHOICES = 10_000
# The library's conversion of GBNF is written in Python.
MAX_GBNF = 16_384

# A body over HTTP: JSON values of any kind, members of objects, lists and objects, and how deep they may be nested.
MAX_BODY_VALUES = 1_000_000
MAX_BODY_MEMBERS = 65_536
MAX_BODY_CONTAINERS = 131_072
MAX_BODY_DEPTH = 128
# Fields of one object of which the API knows all fields.
MAX_OBJECT_FIELDS = 200
MAX_MESSAGES = 16_384
MAX_TOOLS = 1024
MAX_PROMPTS = 2048
MAX_SEQUENCES = 4096
MAX_ABORTED_IDS = 4096
# Entries of lists and arguments of a request, times prompts, times `n`: each sequence carries them to the worker.
MAX_CARRIED_VALUES = 1_000_000
# Of /tokenize and /detokenize, where the context does not hold more.
MAX_TOKENIZED_CHARACTERS = 262_144
MAX_DETOKENIZED_TOKENS = 131_072
# Of all prompts of a request: their tokens times one more than `prompt_logprobs`, each about 70 bytes of the answer.
MAX_PROMPT_LOGPROBS = 1 << 20
# Of all prompts that a request wants a vector a token for: their tokens times the hidden size.
MAX_POOLED_NUMBERS = 1 << 24
# Of the answers to all requests that are not read to their ends: 12 bytes a logprob, 4 bytes a number.
MAX_ANSWER_BYTES = 1 << 29
# OpenAI's own.
MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512

# Chat templates. Far beyond what a conversation that fits into a context needs.
MAX_TEMPLATE_STEPS = 100_000
MAX_TEMPLATE_CHARACTERS = 8_000_000
# Templates of requests, which run in a separate process.
REQUEST_TEMPLATE_SECONDS = 3.0
REQUEST_TEMPLATE_BYTES = 512 << 20
