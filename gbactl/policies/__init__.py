"""Policies: which worker may take the next batch, and which gradients are applied when, with what weight.

Pure state machines: no I/O, no torch, no clock. A policy costs a few microseconds a decision.
To add a mode, write a class here or in any package, and a file conf/mode/NAME.yaml with the class as its `target`. A
mode's properties are attributes of its class (see policy.Policy); `policy.names` lists the modes.
"""
