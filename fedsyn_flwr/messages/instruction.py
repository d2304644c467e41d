"""The words of a message beside its arrays."""

# A message's words for it: the last counted round, the same as of the last settled round, 0 = none.
LAST, LAST_SETTLED = "last", "last-settled"
# An answer's: whether state was saved, and whether that of the round asked for was not there.
SAVED, LOST = "state-saved", "state-lost"
