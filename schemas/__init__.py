"""The contract: what travels on Evertick's topics. Pure data, no I/O.

Every message is a JSON object that names its ``schema`` and ``version``; the models here are the
only definition of them. Start with :mod:`schemas.event`; :mod:`schemas.registry` turns bytes into
models and back, :mod:`schemas.topics` says where each model travels and under which key.
"""

from schemas import action, agent, deadletter, incident, inventory, kernel, packet, path, signal

__all__ = [
    "action",
    "agent",
    "deadletter",
    "incident",
    "inventory",
    "kernel",
    "packet",
    "path",
    "signal",
]
