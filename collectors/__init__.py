"""The node agent, and one module for each thing it observes."""
