"""The Responses API: conversations as chats, and the store of responses."""
