"""The commands of ``evertick``, one module each. Each imports what it needs when it runs."""
