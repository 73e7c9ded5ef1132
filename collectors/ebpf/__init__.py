"""What the agent puts into the kernel, and how it reads it: see :mod:`collectors.ebpf.watch`."""
