"""The server's side of a round.

Here: the loop, who the clients are, requests and replies, sums, server optimisers, refinement,
evaluation, checkpoints, results. Not here: what a single method does (`strategies/`). Read
`strategy`, which holds the parts and calls a method's hooks, then `loop`.
"""
