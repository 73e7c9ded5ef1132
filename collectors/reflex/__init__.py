"""LinkPass's watchdog: a process of its own that hears the peers and moves routes in milliseconds.

``wire`` is the heartbeat and its proof, ``liveness`` what is concluded from heartbeats, ``choice``
which path a peer's route takes, ``peer`` these three for one peer: all pure. ``ports``, ``links`` and
``routes`` are the kernel's side, ``exchange`` and ``steering`` bring the two together for all peers, and
``watchdog`` is the loop. That process imports nothing but the standard library and
:mod:`collectors.netlink`, so it is small and at work at once. The agent's side is ``config``, ``child``,
``telling``, ``stall`` and ``powers``.
"""
