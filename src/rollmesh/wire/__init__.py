"""The wire (layer 4): session messages, and the bytes that carry them. No sockets here."""
