"""How this process computes: device, precision, recorded passes, threads, what it costs.

Nothing here knows of a federation. Read `device` first.
"""
