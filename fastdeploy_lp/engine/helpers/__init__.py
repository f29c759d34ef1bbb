"""Work in helper processes and threads: grammars, authors' checks, chat templates of requests."""
