"""Getting a run going on this machine or a Ray cluster, and knowing how it ended.

Here: from a conf to a checked plan, a SuperLink and a Ray of our own, grids of runs, cleaning up.
Not here: what happens within a round. Read `resolve`, then `runner`, then `superlink`.
"""
