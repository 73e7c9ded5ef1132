"""The bench: what Evertick is measured with, and on. May use every other package."""
