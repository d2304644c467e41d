"""The device's side of a round.

Here: the Flower client that all methods share, the local training loop, what a process keeps
resident, what a node keeps between rounds. Not here: what a single method does (`clients/`). Read
`numpy_client`, then `training`.
"""
