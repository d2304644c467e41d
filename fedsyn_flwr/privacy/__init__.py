"""What leaves a client, and what it gives away.

Here: clipping, noise and their accountant (`dp`); how much synthetic images tell of real ones
(`similarity`, `audit`). Read `dp` first.
"""
