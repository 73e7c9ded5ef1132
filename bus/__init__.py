"""How events travel: settings, producer with a disk spool, consumer, dead letters, topics, health."""
