"""History: every topic as ClickHouse tables, on the embedded engine or on a real server."""
