"""What travels between server and clients.

Here: named groups of arrays and how they become Flower's, the words of an instruction, shared
memory in their place. Not here: what a method puts into them. Read `payload` first.
"""
