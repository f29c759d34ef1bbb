"""Work in helper processes: grammars, authors' checks, chat templates of requests."""
