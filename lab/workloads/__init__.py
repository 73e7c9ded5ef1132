"""Jobs that run across a lab's hosts and tell how they fare."""
